"""InternVL: a language model that gets squares of an image's patches through two linear layers.

After transformers' modeling_internvl.py (5.23).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from estimator.families.build import Builder
from estimator.families.parts import MultimodalSpec, multimodal


class InternVLSpec(MultimodalSpec):
    """`downsample_ratio`: of the side of what the tower gives, to that of what the language model gets."""

    in_sglang = "transformers"

    kinds = {"text_config": "qwen2", "vision_config": "internvl_vision"}
    fixed = ("vision_config",)

    downsample_ratio: Annotated[float, Field(gt=0, le=1)] = 0.5
    tie_word_embeddings: bool = True


SPECS = {"internvl": InternVLSpec}


def between(spec: InternVLSpec, build: Builder) -> None:
    """What is between the tower and the language model."""
    read = spec.text_config.hidden_size
    seen = spec.vision_config.hidden_size * int(1 / spec.downsample_ratio) ** 2
    build.layer_norm("multi_modal_projector.layer_norm", seen)
    build.linear("multi_modal_projector.linear_1", seen, read, True)
    build.linear("multi_modal_projector.linear_2", read, read, True)


HEADS = multimodal(between)
