"""The language models of GLM-4.1V, 4.5V and GLM-OCR: GLM-4 and GLM-4.5 with rotary positions in three dimensions.

After transformers' modeling_glm4v.py, modeling_glm4v_moe.py and modeling_glm_ocr.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.decoder import Decoder
from estimator.families.glm4 import Glm4Spec, glm4
from estimator.families.glm4_moe import Glm4MoeSpec, glm4_moe
from estimator.families.heads import CausalLM
from estimator.families.rotary import PartialRotarySpec
from estimator.families.spec import Size


class InSections(PartialRotarySpec):
    """Which pairs of each head are rotated by time, by height and by width decides nothing about memory, but their numbers must
    fit: a quarter by time, as in the published models."""

    def config(self) -> dict[str, Any]:
        pairs = self.rotary_size // 2
        time, height = pairs // 4, (pairs - pairs // 4) // 2
        sections = {"mrope_section": [time, height, pairs - time - height], "partial_rotary_factor": self.partial_rotary_factor}
        return super().config() | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **sections}}


class Glm4vTextSpec(Glm4Spec, InSections):
    can = Abilities(gguf=True, graph="glm-4v")
    runs = False

    max_position_embeddings: Size | None = 32768
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


class Glm4vMoeTextSpec(Glm4MoeSpec, InSections):
    can = Abilities(gguf=True, graph="glm-4v-moe", routing="sigmoid")
    runs = False

    max_position_embeddings: Size | None = 65536
    attention_bias: bool = True


class GlmOcrTextSpec(Glm4Spec, InSections):
    can = Abilities(gguf=True, graph="glm-4v")
    runs = False

    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    attention_bias: Literal[False] = False


SPECS = {"glm4v_text": Glm4vTextSpec, "glm4v_moe_text": Glm4vMoeTextSpec, "glm_ocr_text": GlmOcrTextSpec}
BODIES: dict[str, Callable[[Any, Builder], Decoder]] = {"glm4v_text": glm4, "glm4v_moe_text": glm4_moe, "glm_ocr_text": glm4}
HEADS = {"causal-lm": counted(lambda spec, build: CausalLM(BODIES[spec.model_type](spec, build), spec, build))}
