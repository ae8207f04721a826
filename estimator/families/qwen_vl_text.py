"""The language models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3 with rotary positions in three dimensions.

After transformers' modeling_qwen2_vl.py, modeling_qwen2_5_vl.py and modeling_qwen3_vl.py (5.23).
"""

from __future__ import annotations

from estimator.families.counted import counted
from estimator.families.heads import CausalLM
from estimator.families.llama import Qwen2Spec, Qwen3Spec, llama


class Qwen2VLTextSpec(Qwen2Spec):
    runs = False


class Qwen3VLTextSpec(Qwen3Spec):
    runs = False


SPECS = {"qwen2_vl_text": Qwen2VLTextSpec, "qwen2_5_vl_text": Qwen2VLTextSpec, "qwen3_vl_text": Qwen3VLTextSpec}
HEADS = {"causal-lm": counted(lambda spec, build: CausalLM(llama(spec, build), spec, build))}
