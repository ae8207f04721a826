"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR: GLM-4, or GLM-4.5 with experts, that sees images and films.

After transformers' modeling_glm4v.py, modeling_glm4v_moe.py and modeling_glm_ocr.py (5.23).
"""

from __future__ import annotations

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.experts import EXPERTS_HELD_IN
from estimator.families.glm4 import Glm4Spec, glm4
from estimator.families.glm4_moe import Glm4MoeSpec, glm4_moe
from estimator.families.glm4v_vision import Glm4vVisionSpec, VisionModel
from estimator.families.heads import CausalLM
from estimator.families.image_text import ImageTextToText
from estimator.families.qwen_vl import QwenVL, Spec, resized, whole

FRAMES = 2
"""An image is shown twice, as two frames of a film, and its processor's bounds are of the pixels of both: `smart_resize` of
image_processing_glm4v.py, whose most is what the published models have, too (vLLM, models/glm4_1v.py, `get_num_image_tokens`)."""


class Glm4vSpec(Spec):
    bounds = (112 * 112 // FRAMES, 28 * 28 * 6144)
    plain = "glm4"
    kinds = {"text_config": "glm4v_text", "vision_config": "glm4v_vision"}
    towers, languages = ("glm4v_vision",), ("glm4v_text",)

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings or self.text_config.tie_word_embeddings

    def grid(self, images: Images) -> tuple[int, int]:
        """An image that is less high or wide than a token is made larger first."""
        patch = self.vision.patch_size
        factor = patch * self.vision.spatial_merge_size
        least, most = images.min_pixels or self.bounds[0], images.max_pixels or self.bounds[1]
        height, width = images.height, images.width
        if min(height, width) < factor:
            scale = factor / min(height, width)
            height, width = int(height * scale), int(width * scale)
        tall, wide = resized(height, width, factor, least, most)
        return tall // patch, wide // patch


class Glm4vMoeSpec(Glm4vSpec):
    """With experts in the language model."""

    plain = "glm4_moe"
    held_in = EXPERTS_HELD_IN
    kinds = {"text_config": "glm4v_moe_text", "vision_config": "glm4v_moe_vision"}
    towers, languages = ("glm4v_moe_vision",), ("glm4v_moe_text",)


class GlmOcrSpec(Glm4vSpec):
    kinds = {"text_config": "glm_ocr_text", "vision_config": "glm_ocr_vision"}
    towers, languages = ("glm_ocr_vision",), ("glm_ocr_text",)


SPECS: dict[str, type[Spec]] = {"glm4v": Glm4vSpec, "glm4v_moe": Glm4vMoeSpec, "glm_ocr": GlmOcrSpec}


def glm4v(spec: Spec, build: Builder) -> ImageTextToText | QwenVL:
    """The whole model (`Glm4vForConditionalGeneration`, `Glm4vMoeForConditionalGeneration`)."""

    def tower(grid: tuple[int, int] | None) -> VisionModel:
        assert isinstance(spec.vision, Glm4vVisionSpec)
        return VisionModel(spec.vision, build, grid)

    def language() -> CausalLM:
        text = spec.alone
        if isinstance(text, Glm4MoeSpec):
            return CausalLM(glm4_moe(text, build, in_three=True), text, build)
        assert isinstance(text, Glm4Spec)
        return CausalLM(glm4(text, build, in_three=True), text, build)

    return whole(spec, build, language, tower)


HEADS = {"image-text-to-text": glm4v}
