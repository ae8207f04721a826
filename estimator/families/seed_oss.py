"""Seed-OSS: Llama's layers with biases for queries, keys and values, and dropout after both blocks of a layer.

After transformers' modeling_seed_oss.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.spec import Probability, RotaryDecoderSpec, Size


class SeedOssSpec(RotaryDecoderSpec):
    in_sglang = "transformers"
    can = Abilities(gguf=True, graph="seed-oss")
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 524288
    attention_bias: bool = True
    attention_out_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: Probability = 0.1
    residual_dropout: Probability = 0.1


SPECS = {"seed_oss": SeedOssSpec}


def seed_oss(spec: SeedOssSpec, build: Builder) -> Decoder:
    """The body of the model."""
    drops = spec.residual_dropout

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, spec.attention_bias, spec.attention_out_bias, drops=drops)
        return PreNorm(spec, build, attention, GatedMLP(spec, build, bias=spec.mlp_bias, drops=drops))

    return Decoder(spec, build, layer)


HEADS = decoder_heads(seed_oss)
