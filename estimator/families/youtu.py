"""Youtu-LLM: DeepSeek-V3's latent attention before dense feed-forward layers, in every layer.

After transformers' modeling_youtu.py (5.23).
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, latent
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import language_model
from estimator.families.latent import LatentAttention
from estimator.families.spec import DecoderSpec, Size, called


class YoutuSpec(DecoderSpec):
    """`head_dim` is the rotated part of a head."""

    can = Abilities()
    last_vllm = "none"
    why_not_vllm = "its makers' fork does, Tencent-Cloud-Acc/vllm; no release's registry was seen to have it"
    in_sglang = False

    head_dim: Size = called("qk_rope_head_dim", 64)
    kv_lora_rank: Size = 512
    q_lora_rank: Size | None = 1536
    qk_nope_head_dim: Size = 128
    v_head_dim: Size = 128
    max_position_embeddings: Size | None = 131072
    tie_word_embeddings: bool = True
    rope_interleave: bool = True
    attention_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": heads}

    @property
    def qk_head_dim(self) -> int:
        """Size of a head of queries and keys."""
        return self.qk_nope_head_dim + self.head_dim

    @property
    def cached_per_token(self) -> int | None:
        """A latent and the rotated part of a key in every layer, as engines keep them."""
        return self.num_hidden_layers * (self.kv_lora_rank + self.head_dim)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return (latent(self.kv_lora_rank + self.head_dim),) * self.num_hidden_layers

    @model_validator(mode="after")
    def _one_key_head_each(self) -> Self:
        if self.num_key_value_heads != self.num_attention_heads:
            raise ValueError(f"num_key_value_heads {self.num_key_value_heads} is not num_attention_heads: every head has keys")
        for name, size in (("qk_nope_head_dim + qk_rope_head_dim", self.qk_head_dim), ("v_head_dim", self.v_head_dim)):
            if size % 8 or self.head_dim % 2:
                raise ValueError(f"{name} {size} is not a multiple of 8, as kernels of attention want")
        return self


SPECS = {"youtu": YoutuSpec}


def youtu(spec: Any, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, LatentAttention(spec, build), GatedMLP(spec, build))

    return Decoder(spec, build, layer, rotary=Rotary(spec.head_dim))


HEADS = language_model(youtu)
