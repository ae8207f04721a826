"""Granite with experts: as Llama, with numbers that scale embeddings, residuals, attention and logits.

After transformers' modeling_granitemoe.py (5.23).
"""

from __future__ import annotations

from typing import Protocol

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import SelfAttention, scaled
from estimator.families.experts import AUXILIARY, Experts, MoeSpec, entered
from estimator.families.granite import ScaledLM
from estimator.families.heads import Head
from estimator.families.llama import LlamaRotary, LlamaSpec, self_attention
from estimator.families.spec import Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import mul_scalar, softmax, to
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class GraniteMoeSpec(LlamaSpec, MoeSpec):
    can = Abilities(gguf=True, graph="granite", mlx_routers="8 bits")
    modelled = AUXILIARY
    tensor_parallel = cached = False

    num_experts: Size = called("num_local_experts", 8)
    num_experts_per_tok: Size = 2


SPECS = {"granitemoe": GraniteMoeSpec}


class Mixture(Protocol):
    """What a spec says of its experts."""

    @property
    def num_experts(self) -> int: ...
    @property
    def num_experts_per_tok(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...


class GraniteMoeRouter:
    """The best experts by their scores, and a softmax over those only."""

    def __init__(self, spec: Mixture, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.weight = build.weight("block_sparse_moe.router.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = to(linear(hidden, self.weight()), dtypes.float32)
            best, chosen = topk(logits, self.top_k)
            return logits, to(softmax(best), hidden.dtype), chosen


class GraniteMoe:
    def __init__(self, spec: Mixture, build: Builder):
        self.router = GraniteMoeRouter(spec, build)
        self.experts = Experts(spec, build, "block_sparse_moe.experts")

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.router(flat)
        out = self.experts(flat, chosen, weights)
        del logits
        return reshape(out, hidden.shape)


class GraniteMoeLayer:
    """Not a `PreNorm`: what it has in the place of a feed-forward layer has another name, by which it can be recomputed.

    `attention`: in the place of Llama's.
    """

    def __init__(self, spec: GraniteMoeSpec, build: Builder, attention: SelfAttention | None = None):
        self.self_attn: SelfAttention = attention or self_attention(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.block_sparse_moe = GraniteMoe(spec, build)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, *shared[:-1])
        out = scaled(out, residual)
        residual = out
        out = self.post_attention_layernorm(out)
        out, *_held = self.fed_forward(out)
        return scaled(out, residual)

    def fed_forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """What the experts give, and what the layer holds to its end."""
        return (self.block_sparse_moe(hidden),)


def begin(embeds: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings are scaled late, when the mask is made."""
    embeds = mul_scalar(embeds)
    return embeds, embeds


def granitemoe(spec: GraniteMoeSpec, build: Builder) -> Decoder:
    """The body of the model."""
    return Decoder(spec, build, lambda _: GraniteMoeLayer(spec, build), rotary=LlamaRotary(spec.head_dim), begin=begin)


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: ScaledLM(granitemoe(spec, build), spec, build)}
