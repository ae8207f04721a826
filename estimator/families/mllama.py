"""Llama 3.2 Vision: a Llama of which some layers read, instead of the text before, what the vision tower gives.

After transformers' modeling_mllama.py (5.23).
"""

from __future__ import annotations

from typing import Any

from pydantic import SerializeAsAny

from estimator.families.build import Builder
from estimator.families.heads import CausalLM
from estimator.families.image_text import ImageTextToText
from estimator.families.mllama_text import MllamaTextSpec, decoder
from estimator.families.mllama_vision import MllamaVisionSpec
from estimator.families.parts import MultimodalSpec, build_part


class MllamaSpec(MultimodalSpec):
    """Its output layer is never tied: the input embedding has more rows."""

    runs = True
    attentions = ("sdpa", "eager")
    towers, languages = ("mllama_vision_model",), ("mllama_text_model",)
    last_vllm = "0.10.2"
    kinds = {"text_config": "mllama_text_model", "vision_config": "mllama_vision_model"}
    fixed = ("text_config", "vision_config")

    vision_config: SerializeAsAny[MllamaVisionSpec]

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "tie_word_embeddings"}


SPECS = {"mllama": MllamaSpec}


def mllama(spec: MllamaSpec, build: Builder) -> ImageTextToText:
    """The whole model (`MllamaForConditionalGeneration`), on texts alone."""
    text = spec.language_model
    assert isinstance(text, MllamaTextSpec)
    with build.part("model.language_model"):  # first, since transformers counts no layer of the tower for checkpoints
        language = CausalLM(decoder(text, build), text.model_copy(update={"tie_word_embeddings": False}), build)
    with build.part("model.vision_model", learns=False):
        tower = build_part(spec.vision_config, build)
    with build.part("model", learns=False):
        projector = build.linear("multi_modal_projector", spec.vision_config.vision_output_dim, text.hidden_size, True)
    return ImageTextToText(language, None, build, held=(tower, projector))


HEADS = {"image-text-to-text": mllama}
