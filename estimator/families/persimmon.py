"""Persimmon: queries, keys and values in one layer, normalised head by head, half of each head rotated, squared ReLU.

After transformers' modeling_persimmon.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.modules import Module
from estimator.families.rotary import PartialRotarySpec
from estimator.families.rotations import rotate_first
from estimator.families.spec import Activation, DecoderSpec, FullHeadsSpec, Probability, Size
from estimator.tape.layout import Shape
from estimator.tape.pointwise import dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, select, transpose


class PersimmonSpec(PartialRotarySpec, FullHeadsSpec):
    can = Abilities()
    in_sglang = "transformers"
    module_dropouts = ("hidden_dropout",)
    cached = True

    max_position_embeddings: Size | None = 16384
    hidden_act: Activation = "relu2"
    partial_rotary_factor: float = 0.5
    qk_layernorm: bool = True
    hidden_dropout: Probability = 0.0


SPECS = {"persimmon": PersimmonSpec}


class PersimmonAttention(GroupedQueryAttention):
    positions = "attention"
    """How far the tokens' positions are handed in: not to its core."""

    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        size = spec.hidden_size
        self.query_key_value = build.linear("self_attn.query_key_value", size, 3 * size, bias)
        self.o_proj = build.linear("self_attn.dense", size, size, output_bias)


def _heads(fused: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """Queries, keys and values, which each head has side by side: views of what holds all of them."""
    each = reshape(fused, (*heads[:-1], 3, heads[-1]))
    return select(each, 3), select(each, 3), select(each, 3)


def _project(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """All three are projected at once, and held; queries and keys are normalised; all three are transposed."""
    assert isinstance(module, PersimmonAttention)
    fused = module.query_key_value(hidden)
    q, k, v = _heads(fused, heads)
    if module.q_norm is not None and module.k_norm is not None:
        q = module.q_norm(q)
        k = module.k_norm(k)
    q = transpose(q, 1, 2)
    v = transpose(v, 1, 2)
    return q, transpose(k, 1, 2), v, fused


class PersimmonLayer(PreNorm):
    """With dropout of what its feed-forward block gives."""

    def __init__(self, spec: PersimmonSpec, build: Builder, *parts: Any):
        super().__init__(spec, build, *parts)
        self.drops = spec.hidden_dropout if build.training else 0.0

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, *shared[:-1])
        out = self.attention_join(out, residual)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        out = dropout(out, self.drops)
        return self.output_join(out, residual)


def persimmon(spec: PersimmonSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(which: str, _: int) -> Module:
        return build.layer_norm(f"self_attn.{which}_layernorm", spec.head_dim)

    def layer(_: None) -> PersimmonLayer:
        norms = norm if spec.qk_layernorm else None
        attention = PersimmonAttention(spec, build, True, True, norm=norms, project=_project, rotate=rotate_first)
        mlp = TwoLayerMLP(spec, build, ("dense_h_to_4h", "dense_4h_to_h"), True)
        return PersimmonLayer(spec, build, attention, mlp, build.layer_norm)

    return Decoder(spec, build, layer, rotary=Rotary(spec.rotary_size), norm=build.layer_norm, last="final_layernorm")


HEADS = decoder_heads(persimmon)
