"""Youtu-LLM: DeepSeek-V3's latent attention before dense feed-forward layers, in every layer.

After transformers' modeling_youtu.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import language_model
from estimator.families.latent import LatentAttention
from estimator.families.latent_spec import LatentSpec
from estimator.families.spec import Size


class YoutuSpec(LatentSpec):
    can = Abilities(gguf=True, graph="deepseek")
    last_vllm = "none"
    why_not_vllm = "its makers' fork does, Tencent-Cloud-Acc/vllm; no release's registry was seen to have it"
    in_sglang = "none"
    why_not_sglang = "its backend for transformers' models knows no latent attention"

    max_position_embeddings: Size | None = 131072
    tie_word_embeddings: bool = True
    rope_interleave: bool = True
    attention_bias: bool = False


SPECS = {"youtu": YoutuSpec}


def youtu(spec: Any, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, LatentAttention(spec, build), GatedMLP(spec, build))

    return Decoder(spec, build, layer, rotary=Rotary(spec.head_dim))


HEADS = language_model(youtu)
