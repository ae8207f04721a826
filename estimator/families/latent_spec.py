"""What a configuration says of latent attention (MLA), of whatever feed-forward layers stand behind it."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.cache_layers import CacheLayer, latent
from estimator.families.spec import DecoderSpec, Size, called


class LatentSpec(DecoderSpec):
    """`head_dim` is the rotated part of a head."""

    head_dim: Size = called("qk_rope_head_dim", 64)
    kv_lora_rank: Size = 512
    q_lora_rank: Size | None = 1536
    qk_nope_head_dim: Size = 128
    v_head_dim: Size = 128

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": heads}

    @property
    def qk_head_dim(self) -> int:
        """Size of a head of queries and keys."""
        return self.qk_nope_head_dim + self.head_dim

    @property
    def cached_per_token(self) -> int | None:
        """A latent and the rotated part of a key, which all heads share, in every layer: what engines keep (vLLM). transformers
        keeps every head's keys and values."""
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
