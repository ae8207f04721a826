"""Nemotron and Minitron: layer norms whose weights count from one, squared ReLU, rotary embeddings on a part of each head.

After transformers' modeling_nemotron.py (5.23).
"""

from __future__ import annotations

from functools import partial

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.rotary import PartialRotarySpec
from estimator.families.rotations import rotate_first_alone
from estimator.families.spec import Activation, Size
from estimator.tape.autocast import paused
from estimator.tape.normalization import layer_norm
from estimator.tape.pointwise import add_scalar, to
from estimator.tape.tensor import Tensor


class NemotronSpec(PartialRotarySpec):
    in_sglang = "transformers"
    can = Abilities(gguf=True, graph="nemotron-4")
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 4096
    hidden_act: Activation = "relu2"
    partial_rotary_factor: float = 0.5
    attention_bias: bool = False
    mlp_bias: bool = False


SPECS = {"nemotron": NemotronSpec}


class LayerNorm1P:
    """A layer norm of weights that count from one. It runs in autocast's type, where that is on."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.parameter(name + ".weight", (size,))
        self.bias = build.parameter(name + ".bias", (size,))

    def __call__(self, x: Tensor) -> Tensor:
        context = x.tape.autocast
        args = [x, add_scalar(self.weight), self.bias]
        if context is not None:
            args = [to(t, context.dtype) for t in args]
        with paused(x.tape):
            return layer_norm(*args)


def nemotron(spec: NemotronSpec, build: Builder) -> Decoder:
    """The body of the model."""
    norm = partial(LayerNorm1P, build)

    def layer(_: None) -> PreNorm:
        bias = spec.attention_bias
        attention = GroupedQueryAttention(spec, build, bias, bias, rotate=rotate_first_alone)
        return PreNorm(spec, build, attention, TwoLayerMLP(spec, build, ("up_proj", "down_proj"), spec.mlp_bias), norm)

    return Decoder(spec, build, layer, rotary=Rotary(spec.rotary_size), norm=norm)


HEADS = decoder_heads(nemotron)
