"""PaddleOCR-VL: a small language model that reads squares of a page's patches through two linear layers.

After transformers' modeling_paddleocr_vl.py and image_processing_paddleocr_vl.py (5.23).
"""

from __future__ import annotations

from estimator.contract.job.images import Images
from estimator.families import spec_class
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.heads import CausalLM, Model
from estimator.families.image_text import ImageTextToText, by_image
from estimator.families.paddleocr_text import PaddleOCRTextSpec
from estimator.families.paddleocr_vision import PaddleOCRVisionSpec, VisionModel
from estimator.families.qwen_vl import Qwen2VLSpec, QwenVL, resized
from estimator.families.qwen_vl_text import decoder
from estimator.families.spec import ModelSpec
from estimator.families.voxtral import HEAD
from estimator.tape.pointwise import gelu
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, reshape, transpose


class PaddleOCRVLSpec(Qwen2VLSpec):
    looks_for_films = False
    plain = "llama"
    bounds = (384 * 384, 1536 * 1536)
    kinds = {"text_config": "paddleocr_vl_text", "vision_config": "paddleocr_vl_vision"}
    towers, languages = ("paddleocr_vl_vision",), ("paddleocr_vl_text",)

    tie_word_embeddings: bool = True

    @property
    def text(self) -> PaddleOCRTextSpec:
        language = self.language_model
        assert isinstance(language, PaddleOCRTextSpec)
        return language

    @property
    def alone(self) -> ModelSpec:
        given = self.text.model_dump(exclude={"use_bias", "attention_bias", "mlp_bias"})
        bias = self.text.use_bias
        return spec_class("llama").model_validate({**given, "model_type": "llama", "attention_bias": bias, "mlp_bias": bias})

    @property
    def picture(self) -> Picture | None:
        """Not known: what vLLM begins with was not looked up."""
        return None

    def grid(self, images: Images) -> tuple[int, int]:
        """An image that is less high or wide than a token is made larger first."""
        patch, height, width = self.vision.patch_size, images.height, images.width
        factor = patch * self.vision.spatial_merge_size
        if height < factor:
            height, width = factor, round(width * factor / height)
        if width < factor:
            height, width = round(height * factor / width), factor
        least, most = images.min_pixels or self.bounds[0], images.max_pixels or self.bounds[1]
        tall, wide = resized(height, width, factor, least, most)
        return tall // patch, wide // patch


SPECS = {"paddleocr_vl": PaddleOCRVLSpec}


class Sight:
    """The tower, and what follows it, image by image (`PaddleOCRProjector`)."""

    def __init__(self, spec: PaddleOCRVLSpec, tower: VisionModel, grid: tuple[int, int] | None, build: Builder):
        self.tower, self.proj, self.grid, self.merge = tower, tower.proj, grid or (0, 0), spec.vision.spatial_merge_size
        size = spec.vision.width * self.merge**2
        self.pre_norm = build.layer_norm("projector.pre_norm", spec.vision.width)
        self.linear_1 = build.linear("projector.linear_1", size, size, True)
        self.linear_2 = build.linear("projector.linear_2", size, spec.text.hidden_size, True)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Last hidden states, and what the language model gets of them."""
        last = self.tower(pixels)
        return last, self._projected(last)

    def _projected(self, last: Tensor) -> Tensor:
        (rows, columns), merge, size = self.grid, self.merge, last.shape[1]
        parts = by_image(last, rows * columns)
        made = []
        for part in parts:
            seen = self.pre_norm(part)
            seen = transpose(reshape(seen, (1, rows // merge, merge, columns // merge, merge, size)), 2, 3)
            seen = reshape(seen, (-1, merge**2 * size))
            hidden = self.linear_1(seen)
            hidden = gelu(hidden)
            hidden = self.linear_2(hidden)
            made.append(hidden)
        joined = cat(made, 0)
        del parts, seen, hidden
        return joined


def paddleocr_vl(spec: PaddleOCRVLSpec, build: Builder) -> Model:
    """The whole model (`PaddleOCRVLForConditionalGeneration`)."""
    learns, grid = build.images is not None, None if build.images is None else spec.grid(build.images)
    assert isinstance(spec.vision, PaddleOCRVisionSpec)
    with build.part("model.visual.vision_model", learns):
        tower = VisionModel(spec.vision, build, grid)
    with build.part("model.language_model"):
        language = CausalLM(decoder(spec.text, build), spec.text, build)
    with build.part("model", learns), build.ahead(HEAD):
        sight = Sight(spec, tower, grid, build)
    return ImageTextToText(language, None, build, held=sight) if build.images is None else QwenVL(spec, sight, language, build)


HEADS = {"image-text-to-text": paddleocr_vl}
