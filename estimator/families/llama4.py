"""Llama 4: a mixture of experts that gets an image's patches through one linear layer.

After transformers' modeling_llama4.py (5.23).
"""

from __future__ import annotations

from pydantic import SerializeAsAny

from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.llama4_vision import Llama4VisionSpec
from estimator.families.parts import MultimodalSpec, multimodal

TILES, SHUFFLED = 17, 4
"""Squares of an image at most, with one of the whole, and patches to a token: the published models' (`max_patches`,
`pixel_shuffle_ratio`)."""


class Llama4Spec(MultimodalSpec):
    window_pool = "0.5.8"
    images_in_sglang = "left out"
    kinds = {"text_config": "llama4_text", "vision_config": "llama4_vision_model"}
    fixed = ("text_config", "vision_config")

    vision_config: SerializeAsAny[Llama4VisionSpec]

    @property
    def picture(self) -> Picture | None:
        return Picture(TILES * self.vision_config.patches // SHUFFLED, TILES * self.vision_config.pixels)

    @property
    def tied(self) -> bool:
        return self.text_config.tie_word_embeddings


SPECS = {"llama4": Llama4Spec}


def between(spec: Llama4Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    build.linear("multi_modal_projector.linear_1", spec.vision_config.vision_output_dim, spec.text_config.hidden_size)


HEADS = multimodal(between)
