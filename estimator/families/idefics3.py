"""Idefics 3 and SmolVLM: a language model that gets squares of an image's patches through one linear layer.

After transformers' modeling_idefics3.py and modeling_smolvlm.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.spec import Size


class Idefics3Spec(MultimodalSpec):
    """`scale_factor`: patches along the side of a square."""

    in_sglang = False

    kinds = {"text_config": "llama", "vision_config": "idefics3_vision"}
    fixed = ("vision_config",)

    scale_factor: Size = 2


class SmolVLMSpec(Idefics3Spec):
    kinds = {"text_config": "llama", "vision_config": "smolvlm_vision"}


SPECS = {"idefics3": Idefics3Spec, "smolvlm": SmolVLMSpec}


def between(spec: Idefics3Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    seen = spec.vision_config.hidden_size * spec.scale_factor**2
    build.linear("connector.modality_projection.proj", seen, spec.text_config.hidden_size)


HEADS = multimodal(between)
