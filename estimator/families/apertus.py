"""Apertus: Llama's layers with norms of queries and keys, and a feed-forward layer of two linear layers with xIELU between.

After transformers' modeling_apertus.py and activations.py (5.23); xIELU as it runs without its own package of kernels.
"""

from __future__ import annotations

from typing import Literal

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.grouped_query import GroupedQueryAttention, normed_after_all
from estimator.families.heads import language_model
from estimator.families.modules import Module
from estimator.families.spec import RotaryDecoderSpec, Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, expm1, mul, softplus, sub, where_either
from estimator.tape.selection import minimum
from estimator.tape.tensor import Tensor, unary


class ApertusSpec(RotaryDecoderSpec):
    can = Abilities(gguf=True, graph="apertus-1")
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 65536
    hidden_act: Literal["xielu"] = "xielu"  # type: ignore[assignment]
    attention_bias: bool = False


SPECS = {"apertus": ApertusSpec}


class Xielu:
    """A parabola right of zero, an exponential function left of it, with a trained number for each (`XIELUActivation`)."""

    def __init__(self, build: Builder):
        self.alpha_p = build.parameter("mlp.act_fn.alpha_p", (1,))
        self.alpha_n = build.parameter("mlp.act_fn.alpha_n", (1,))
        self.beta, self.eps = (build.buffer(f"mlp.act_fn.{name}", (), build.dtype) for name in ("beta", "eps"))

    def __call__(self, x: Tensor) -> Tensor:
        alpha_p = softplus(self.alpha_p)
        alpha_n = add(self.beta, softplus(self.alpha_n))
        return where_either(
            unary("gt", x, dtypes.bool_),
            add(mul(mul(alpha_p, x), x), mul(self.beta, x)),
            add(mul(sub(expm1(minimum(x, self.eps)), x), alpha_n), mul(self.beta, x)),
        )


class ApertusMLP:
    def __init__(self, spec: ApertusSpec, build: Builder):
        self.up_proj = build.linear("mlp.up_proj", spec.hidden_size, spec.intermediate_size)
        self.down_proj = build.linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size)
        self.act = Xielu(build)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


def apertus(spec: ApertusSpec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def norm(which: str, _: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, norm=norm, project=normed_after_all)
        names = ("attention_layernorm", "feedforward_layernorm")
        return PreNorm(spec, build, attention, ApertusMLP(spec, build), names=names)

    return Decoder(spec, build, layer)


HEADS = language_model(apertus)
