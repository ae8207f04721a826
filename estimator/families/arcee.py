"""Arcee's AFM: Llama with a feed-forward layer of two linear layers and the square of a ReLU between them.

After transformers' modeling_arcee.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.spec import Activation, RotaryDecoderSpec, Size


class ArceeSpec(RotaryDecoderSpec):
    can = Abilities(gguf=True, graph="arcee-1")
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 4096
    hidden_act: Activation = "relu2"
    attention_bias: bool = False
    mlp_bias: bool = False


SPECS = {"arcee": ArceeSpec}


def arcee(spec: ArceeSpec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias)
        return PreNorm(spec, build, attention, TwoLayerMLP(spec, build, ("up_proj", "down_proj"), spec.mlp_bias))

    return Decoder(spec, build, layer)


HEADS = decoder_heads(arcee)
