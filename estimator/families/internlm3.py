"""InternLM 3: Llama under other names of its biases.

After transformers' configuration_internlm3.py (5.23), whose models are Llama's classes.
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.heads import language_model
from estimator.families.llama import LlamaSpec, llama
from estimator.families.spec import Size, called


class InternLM3Spec(LlamaSpec):
    can = Abilities(gguf=True, graph="plain")
    implementations = ("transformers",)

    max_position_embeddings: Size | None = 32768
    attention_bias: bool = called("qkv_bias", False)
    mlp_bias: bool = called("bias", False)

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 2, "head_dim": 128}


SPECS = {"internlm3": InternLM3Spec}
HEADS = language_model(llama)
