"""Qwen3.5 and Qwen3.6: language models of gated delta nets and gated attention, that see images and films.

Their tower is Qwen3-VL's without what that adds to the language model's first layers. After transformers' modeling_qwen3_5.py and
modeling_qwen3_5_moe.py (5.23).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.gated_delta import GatedDeltaSpec
from estimator.families.heads import CausalLM
from estimator.families.image_text import ImageTextToText
from estimator.families.qwen3_5_text import qwen3_5 as decoder
from estimator.families.qwen_vl import QwenVL, Spec, whole


class Qwen35Spec(Spec):
    """Its images come through Qwen3-VL's processor."""

    bounds = (256 * 256, 4096 * 4096)
    captured_in_sglang = True
    plain = "qwen3_5_text"
    kinds = {"text_config": "qwen3_5_text", "vision_config": "qwen3_5_vision"}
    towers, languages = ("qwen3_5_vision",), ("qwen3_5_text",)


class Qwen35MoeSpec(Qwen35Spec):
    """With experts in the language model."""

    captured_in_sglang = True
    plain = "qwen3_5_moe_text"
    kinds = {"text_config": "qwen3_5_moe_text", "vision_config": "qwen3_5_moe_vision"}
    towers, languages = ("qwen3_5_moe_vision",), ("qwen3_5_moe_text",)


SPECS = {"qwen3_5": Qwen35Spec, "qwen3_5_moe": Qwen35MoeSpec}


def qwen3_5(spec: Spec, build: Builder) -> ImageTextToText | QwenVL:
    """The whole model (`Qwen3_5ForConditionalGeneration`)."""

    def language() -> CausalLM:
        text = spec.alone
        assert isinstance(text, GatedDeltaSpec)
        return CausalLM(decoder(text, build), text, build)

    return whole(spec, build, language)


HEADS = {"image-text-to-text": qwen3_5}
