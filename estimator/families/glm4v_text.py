"""The language models of GLM-4.1V and 4.5V: GLM-4 and GLM-4.5 with rotary positions in three dimensions.

After transformers' modeling_glm4v.py and modeling_glm4v_moe.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.decoder import Decoder
from estimator.families.glm4 import Glm4Spec, glm4
from estimator.families.glm4_moe import Glm4MoeSpec, glm4_moe
from estimator.families.heads import CausalLM
from estimator.families.spec import Size


class Glm4vTextSpec(Glm4Spec):
    can = Abilities()
    runs = False

    max_position_embeddings: Size | None = 32768
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


class Glm4vMoeTextSpec(Glm4MoeSpec):
    can = Abilities()
    runs = False

    max_position_embeddings: Size | None = 65536
    attention_bias: bool = True


SPECS = {"glm4v_text": Glm4vTextSpec, "glm4v_moe_text": Glm4vMoeTextSpec}
BODIES: dict[str, Callable[[Any, Builder], Decoder]] = {"glm4v_text": glm4, "glm4v_moe_text": glm4_moe}
HEADS = {"causal-lm": counted(lambda spec, build: CausalLM(BODIES[spec.model_type](spec, build), spec, build))}
