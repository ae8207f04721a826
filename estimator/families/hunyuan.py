"""Hunyuan's dense models: Llama that normalises queries and keys once they are rotated.

After transformers' modeling_hunyuan_v1_dense.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_when_rotated
from estimator.families.heads import decoder_heads
from estimator.families.modules import Module
from estimator.families.spec import DecoderSpec, RotaryDecoderSpec

NAMES = {"q": "query_layernorm", "k": "key_layernorm"}


class HunyuanSpec(RotaryDecoderSpec):
    can = Abilities(gguf=True, graph="hunyuan")
    cached = tensor_parallel = True

    attention_bias: bool = False


SPECS = {"hunyuan_v1_dense": HunyuanSpec}


def self_attention(spec: DecoderSpec, build: Builder, bias: bool) -> GroupedQueryAttention:
    """Grouped heads, whose queries and keys are rotated and then normalised."""

    def norm(which: str, _: int) -> Module:
        return build.rms_norm(f"self_attn.{NAMES[which]}", spec.head_dim)

    return GroupedQueryAttention(spec, build, bias, bias, norm=norm, project=normed_when_rotated)


def hunyuan(spec: HunyuanSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, self_attention(spec, build, spec.attention_bias), GatedMLP(spec, build))

    return Decoder(spec, build, layer)


HEADS = decoder_heads(hunyuan)
