"""Flint: Qwen3's mixture with windows, sinks and a shared expert. Attention by hand only, its scores in float32.

After transformers' modeling_flint.py (5.23). Layers that see everything rotate nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, Experts, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.llama import LlamaRotary
from estimator.families.mixtral import QwenMoeSpec
from estimator.families.norms import WideRMSNorm
from estimator.families.rotations import unrotated
from estimator.families.spec import Size
from estimator.families.windows import FULL, SLIDING, LayerType, WindowedSpec
from estimator.tape import dtypes
from estimator.tape.autocast import paused
from estimator.tape.math_attention import repeat_heads
from estimator.tape.matmul import linear, matmul
from estimator.tape.pointwise import add, div, dropout, mul_scalar, sigmoid, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, contiguous, expand, narrow, reshape, transpose


class FlintSpec(WindowedSpec, QwenMoeSpec):
    """The first two layers, each fourth and the last see everything, and the first two are dense, unless the config says
    otherwise."""

    in_sglang = "none"
    why_not_sglang = "attention with sinks is not given to transformers' modules"
    modelled = AUXILIARY
    attentions = ("eager",)
    default_period = 4
    dense_unless_said = (0, 1)

    max_position_embeddings: Size | None = 262144
    sliding_window: Size = 513
    num_experts: Size = 256
    num_experts_per_tok: Size = 6
    moe_intermediate_size: Size = 512
    shared_expert_intermediate_size: Size = 1024
    norm_topk_prob: bool = True
    attention_bias: bool = False

    @classmethod
    def types(cls, layers: int, period: int) -> tuple[LayerType, ...]:
        return tuple([FULL if i < 2 or i % period == 1 or i == layers - 1 else SLIDING for i in range(layers)])


SPECS = {"flint": FlintSpec}


class AttentionWithSinks:
    """Each head has one score more, that of its sink; all are in float32, also under autocast."""

    def __init__(self, sinks: Tensor, dropout: float):
        self.sinks, self.dropout = sinks, dropout

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, values = repeat_heads(q, k), repeat_heads(q, v)
        with paused(q.tape):
            wide = to(q, dtypes.float32), transpose(to(keys, dtypes.float32), 2, 3)
            weights = matmul(*wide)
            del wide
            weights = mul_scalar(weights)
        if mask is not None:
            weights = add(weights, mask)
        batch, heads, tokens, length = weights.shape
        sinks = expand(reshape(self.sinks, (1, -1, 1, 1)), (batch, heads, tokens, 1))
        weights = to(narrow(softmax(cat((weights, sinks), 3)), 3, length), values.dtype)
        weights = dropout(weights, self.dropout)
        out = matmul(weights, values)
        out = contiguous(transpose(out, 1, 2))
        del keys
        return out, weights


class FlintAttention(GroupedQueryAttention):
    def __init__(self, spec: FlintSpec, build: Builder, sees: LayerType):
        def norm(which: str, _: int) -> WideRMSNorm:
            return WideRMSNorm(build, f"self_attn.{which}_norm", spec.head_dim)

        sinks = build.parameter("self_attn.sinks", (spec.num_attention_heads,), dtypes.float32)
        bias, rotate = spec.attention_bias, None if sees == SLIDING else unrotated
        super().__init__(spec, build, bias, bias, norm=norm, rotate=rotate)
        self.attend: Any = AttentionWithSinks(sinks, spec.attention_dropout if build.training else 0.0)


class Router:
    """The best experts by a sigmoid of their scores; its weight and all that it computes are in float32."""

    def __init__(self, spec: FlintSpec, build: Builder):
        self.top_k, self.normalized = spec.num_experts_per_tok, spec.norm_topk_prob
        self.weight = build.weight("mlp.gate.weight", (spec.num_experts, spec.hidden_size), dtype=dtypes.float32)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            with paused(hidden.tape):
                logits = linear(to(hidden, dtypes.float32), to(self.weight(), dtypes.float32))
            weights, chosen = topk(sigmoid(logits), self.top_k)
            if self.normalized:
                weights = div(weights, sum_dim(weights, -1, keepdim=True))
            return logits, weights, chosen


class Moe:
    """Experts beside one that every token passes."""

    def __init__(self, spec: FlintSpec, build: Builder):
        self.experts = Experts(spec, build)
        self.gate = Router(spec, build)
        self.shared_expert = GatedMLP(spec, build, "mlp.shared_expert", spec.shared_expert_intermediate_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.gate(flat)
        out = self.experts(flat, chosen, weights)
        out = add(out, self.shared_expert(flat))
        del logits
        return reshape(out, hidden.shape)


def flint(spec: FlintSpec, build: Builder) -> Decoder:
    """The body of the model."""
    norm = partial(WideRMSNorm, build)

    def layer(kind: tuple[LayerType, bool]) -> PreNorm:
        sees, sparse = kind
        return PreNorm(
            spec, build, FlintAttention(spec, build, sees), Moe(spec, build) if sparse else GatedMLP(spec, build), norm
        )

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    return Decoder(spec, build, layer, kinds, rotary=LlamaRotary(spec.head_dim), norm=norm, sees=lambda kind: kind[0])


HEADS = language_model(flint)
