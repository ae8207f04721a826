"""OLMoE: experts in every layer, and norms over all queries and all keys at once.

After transformers' modeling_olmoe.py (5.23).
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, MoeSpec
from estimator.families.grouped_query import GroupedQueryAttention, normed_whole
from estimator.families.heads import CausalLM, Head
from estimator.families.llama import LlamaRotary, LlamaSpec
from estimator.families.mixtral import MixtralMoe
from estimator.families.modules import Module
from estimator.families.routers import TopKRouter
from estimator.families.spec import Size


class OlmoeSpec(LlamaSpec, MoeSpec):
    heads_normed_together = "gathered"
    can = Abilities(gguf=True, graph="olmoe", routing="not normalized")
    held_in = EXPERTS_HELD_IN
    modelled = {**AUXILIARY, "clip_qkv": (None,)}
    tensor_parallel = cached = False

    max_position_embeddings: Size | None = 4096
    num_experts: Size = 64
    num_experts_per_tok: Size = 8
    norm_topk_prob: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


SPECS = {"olmoe": OlmoeSpec}


class OlmoeMoe(MixtralMoe):
    def __init__(self, spec: Any, build: Builder):
        self.gate = TopKRouter(spec, build, spec.norm_topk_prob)
        self.experts = Experts(spec, build)


def olmoe(spec: OlmoeSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(which: str, heads: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_norm", heads * spec.head_dim)

    def layer(_: None) -> PreNorm:
        bias = spec.attention_bias
        attention = GroupedQueryAttention(spec, build, bias, bias, norm=norm, project=normed_whole)
        return PreNorm(spec, build, attention, OlmoeMoe(spec, build))

    return Decoder(spec, build, layer, rotary=LlamaRotary(spec.head_dim))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(olmoe(spec, build), spec, build)}
