"""Qwen3.5: language models of gated delta nets and gated attention, that see images and films.

After transformers' modeling_qwen3_5.py and modeling_qwen3_5_moe.py (5.23).
"""

from __future__ import annotations

from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.qwen_vl import between


class Qwen35Spec(MultimodalSpec):
    fixed = ("text_config", "vision_config")
    captured_in_sglang = True
    kinds = {"text_config": "qwen3_5_text", "vision_config": "qwen3_5_vision"}


class Qwen35MoeSpec(MultimodalSpec):
    fixed = ("text_config", "vision_config")
    captured_in_sglang = True
    kinds = {"text_config": "qwen3_5_moe_text", "vision_config": "qwen3_5_moe_vision"}


SPECS = {"qwen3_5": Qwen35Spec, "qwen3_5_moe": Qwen35MoeSpec}
HEADS = multimodal(between)
