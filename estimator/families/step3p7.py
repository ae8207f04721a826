"""Step 3.7: Step 3.5's language model, which gets an image's features through one linear layer.

After transformers' modeling_step3p7.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.step3p5 import Step3p5Spec

DOWNSAMPLED = 4
"""How many times as wide as the tower is what its convolutions give."""


class Step3p7Spec(MultimodalSpec):
    window_pool = Step3p5Spec.window_pool
    kinds = {"text_config": "step3p5", "vision_config": "step3p5_vision"}
    fixed = ("text_config", "vision_config")

    projector_bias: bool = False


SPECS = {"step3p7": Step3p7Spec}


def between(spec: Step3p7Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    seen = spec.vision_config.hidden_size * DOWNSAMPLED
    build.linear("multi_modal_projector", seen, spec.text_config.hidden_size, spec.projector_bias)


HEADS = multimodal(between)
