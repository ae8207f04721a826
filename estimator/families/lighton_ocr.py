"""LightOnOCR: Qwen3 that reads pages through Pixtral's tower and what Mistral 3 has after it.

After transformers' modeling_lighton_ocr.py and processing_lighton_ocr.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from pydantic import model_validator

from estimator.families.cache_layers import Picture
from estimator.families.mistral3 import Mistral3Spec, between, mistral3
from estimator.families.parts import multimodal

USUAL: Mapping[str, Mapping[str, Any]] = {
    "text_config": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "vision_config": {"image_size": 1540, "patch_size": 14, "hidden_act": "silu"},
}
"""What a part has of which a config.json says nothing at all (`sub_configs_defaults`)."""
UNSAID = ("vision_feature_layer", "multimodal_projector_bias")
"""Settings of Mistral 3 that it has not: the last hidden states are read, and no layer after the tower has a bias."""


class LightOnOcrSpec(Mistral3Spec):
    runs = True
    kinds = {"text_config": "qwen3", "vision_config": "pixtral"}
    languages = ("qwen3",)
    takes_one_token = True
    names = ("vision_encoder", "vision_projection")

    @property
    def picture(self) -> Picture | None:
        """Its rows end with no token."""
        found = super().picture
        side = isqrt(found.tokens) if found else 0
        return replace(found, tokens=side**2) if found else None

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        return {**USUAL, **given} if isinstance(given, Mapping) else given

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() - {*UNSAID}

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name not in UNSAID}


SPECS = {"lighton_ocr": LightOnOcrSpec}
HEADS = multimodal(between, mistral3)
