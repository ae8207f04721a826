"""Hunyuan 3 (Hy3): Llama's layers with norms of queries and keys, and experts chosen by sigmoids beside one for every token.

After transformers' modeling_hy_v3.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, Experts, LayersOfTypesSpec, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_after_all
from estimator.families.heads import language_model
from estimator.families.modules import Module
from estimator.families.spec import RotaryDecoderSpec, Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, add_scalar, div, mul_scalar, sigmoid, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class HyV3Spec(RotaryDecoderSpec, LayersOfTypesSpec):
    """`enable_moe_fp32_combine`: what the experts give is added in float32."""

    can = Abilities(gguf=True, graph="hunyuan-3", routing="sigmoid")
    modelled = AUXILIARY

    max_position_embeddings: Size | None = 131072
    head_dim: Size = 128
    num_experts: Size = called("num_local_experts", 192)
    num_experts_per_tok: Size = 8
    n_shared_experts: Size = called("num_shared_experts", 1)
    first_k_dense_replace: int = 1
    enable_moe_fp32_combine: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 8, "head_dim": 128}


SPECS = {"hy_v3": HyV3Spec}


class Router:
    """The best experts by a sigmoid of their scores, in float32, and a bias; their weights sum to a number."""

    def __init__(self, spec: HyV3Spec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.weight = build.weight("mlp.gate.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor, correction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            flat = reshape(hidden, (-1, hidden.shape[-1]))
            logits = linear(to(flat, dtypes.float32), to(self.weight(), dtypes.float32))
            scores = sigmoid(logits)
            ranked = add(scores, correction)
            best, chosen = topk(ranked, self.top_k)
            weights = gather(scores, chosen)
            weights = div(weights, add_scalar(sum_dim(weights, -1, keepdim=True)))
            weights = mul_scalar(weights)
            del best, ranked
            return logits, weights, chosen


class Moe:
    def __init__(self, spec: HyV3Spec, build: Builder):
        self.gate = Router(spec, build)
        self.experts = Experts(spec, build)
        self.correction = build.buffer("mlp.e_score_correction_bias", (spec.num_experts,), dtypes.float32)
        width = spec.moe_intermediate_size * spec.n_shared_experts
        self.shared_experts = GatedMLP(spec, build, "mlp.shared_experts", width, spec.mlp_bias)
        self.in_float32 = spec.enable_moe_fp32_combine

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.gate(flat, self.correction)
        routed = self.experts(flat, chosen, weights)
        if self.in_float32:
            out = to(add(to(routed, dtypes.float32), to(self.shared_experts(flat), dtypes.float32)), hidden.dtype)
        else:
            out = add(routed, self.shared_experts(flat))
        del logits
        return reshape(out, hidden.shape)


def hy_v3(spec: HyV3Spec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def norm(which: str, _: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)

    def layer(sparse: bool) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, norm=norm, project=normed_after_all)
        mlp: Any = Moe(spec, build) if sparse else GatedMLP(spec, build, bias=spec.mlp_bias)
        return PreNorm(spec, build, attention, mlp)

    return Decoder(spec, build, layer, spec.sparse())


HEADS = language_model(hy_v3)
