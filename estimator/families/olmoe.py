"""OLMoE: experts in every layer, and norms over all queries and all keys at once.

After transformers' modeling_olmoe.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.experts import AUXILIARY, Experts, MoeSpec
from estimator.families.heads import CausalLM, Head
from estimator.families.layers import Layers
from estimator.families.llama import DecoderLayer, Llama, LlamaSpec, SelfAttention
from estimator.families.mixtral import MixtralMoe
from estimator.families.routers import TopKRouter
from estimator.specs.spec import Size
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose


class OlmoeSpec(LlamaSpec, MoeSpec):
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


class OlmoeAttention(SelfAttention):
    def __init__(self, spec: OlmoeSpec, build: Builder):
        super().__init__(spec, build)
        self.query_norm = build.rms_norm("self_attn.q_norm", spec.hidden_size)
        self.key_norm = build.rms_norm("self_attn.k_norm", spec.head_dim * spec.num_key_value_heads)

    def project(self, hidden: Tensor, heads: Shape) -> tuple[Tensor, Tensor, Tensor]:
        q = self.query_norm(self.q_proj(hidden))
        k = self.key_norm(self.k_proj(hidden))
        v = self.v_proj(hidden)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        return q, k, transpose(reshape(v, heads), 1, 2)


class OlmoeMoe(MixtralMoe):
    def __init__(self, spec: OlmoeSpec, build: Builder):
        self.gate = TopKRouter(spec, build, spec.norm_topk_prob)
        self.experts = Experts(spec, build)


class OlmoeLayer(DecoderLayer):
    attention = OlmoeAttention


class Olmoe(Llama):
    """The body of the model."""

    def stack(self, spec: OlmoeSpec, build: Builder) -> Layers:
        return build.layers(spec.num_hidden_layers, lambda _: OlmoeLayer(spec, build, OlmoeMoe))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(Olmoe(spec, build), spec, build)}
