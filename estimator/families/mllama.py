"""Llama 3.2 Vision: a Llama of which some layers read, instead of the text before, what the vision tower gives.

After transformers' modeling_mllama.py (5.23).
"""

from __future__ import annotations

from typing import Any

from pydantic import SerializeAsAny

from estimator.families.build import Builder
from estimator.families.mllama_vision import MllamaVisionSpec
from estimator.families.parts import MultimodalSpec, multimodal


class MllamaSpec(MultimodalSpec):
    """Its output layer is never tied: the input embedding has more rows."""

    last_vllm = "0.10.2"
    kinds = {"text_config": "mllama_text_model", "vision_config": "mllama_vision_model"}
    fixed = ("text_config", "vision_config")

    vision_config: SerializeAsAny[MllamaVisionSpec]

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "tie_word_embeddings"}


SPECS = {"mllama": MllamaSpec}


def between(spec: MllamaSpec, build: Builder) -> None:
    """What is between the tower and the language model."""
    build.linear("multi_modal_projector", spec.vision_config.vision_output_dim, spec.text_config.hidden_size, True)


HEADS = multimodal(between)
