"""Jais 2: Llama's layers with layer norms, and feed-forward layers of two linear layers with a squared ReLU between.

After transformers' modeling_jais2.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.spec import Activation, RotaryDecoderSpec, Size


class Jais2Spec(RotaryDecoderSpec):
    in_sglang = "transformers"
    can = Abilities(batches=BATCHES, gguf=True, graph="jais-2")
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 8192
    hidden_act: Activation = "relu2"
    attention_bias: bool = True
    mlp_bias: bool = True


SPECS = {"jais2": Jais2Spec}


def jais2(spec: Jais2Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm:
        bias = spec.attention_bias
        attention = GroupedQueryAttention(spec, build, bias, bias)
        mlp = TwoLayerMLP(spec, build, ("up_proj", "down_proj"), spec.mlp_bias)
        return PreNorm(spec, build, attention, mlp, build.layer_norm)

    return Decoder(spec, build, layer, norm=build.layer_norm)


HEADS = language_model(jais2)
