"""PaddleOCR-VL's language model: ERNIE 4.5's sizes in Llama's layers, with rotary positions in three dimensions.

After transformers' modeling_paddleocr_vl.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.counted import counted
from estimator.families.heads import CausalLM
from estimator.families.llama import LlamaSpec
from estimator.families.qwen_vl_text import decoder
from estimator.families.spec import Size

LLAMA = {"attention_bias", "mlp_bias"}
"""What Llama's configuration says in the place of `use_bias`."""


class PaddleOCRTextSpec(LlamaSpec):
    runs = False

    max_position_embeddings: Size | None = 131072
    tie_word_embeddings: bool = True
    use_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 2, "head_dim": 128}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() - LLAMA

    def config(self) -> dict[str, Any]:
        time = self.head_dim // 8
        sections = [time, time + time // 2, self.head_dim // 2 - 2 * time - time // 2]
        rope = {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": sections}
        own = {name: value for name, value in super().config().items() if name not in LLAMA}
        return own | {"rope_parameters": rope}

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.use_bias, self.use_bias, self.use_bias


SPECS = {"paddleocr_vl_text": PaddleOCRTextSpec}
HEADS = {"causal-lm": counted(lambda spec, build: CausalLM(decoder(spec, build), spec, build))}
