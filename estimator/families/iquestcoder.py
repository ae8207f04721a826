"""IQuest-Coder: Llama with a head size of its own.

After transformers' configuration_iquestcoder.py (5.23), whose models are Llama's classes.
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.heads import language_model
from estimator.families.llama import LlamaSpec, llama
from estimator.families.spec import Size


class IQuestCoderSpec(LlamaSpec):
    can = Abilities(gguf=True, graph="plain")
    implementations = ("transformers",)
    modelled = {"clip_qkv": (None,), "use_sliding_window": (False, None)}

    max_position_embeddings: Size | None = 131072

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 8, "head_dim": 128}


SPECS = {"iquestcoder": IQuestCoderSpec}
HEADS = language_model(llama)
