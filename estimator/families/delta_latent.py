"""What Kimi Linear's and Ling 3.0's configurations share: delta attention, with latent attention in some layers."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.cache_layers import CacheLayer, latent
from estimator.families.each_layer import check_each_named
from estimator.families.experts import GroupedExpertsSpec, LayersOfTypesSpec
from estimator.families.latent_spec import LatentSpec
from estimator.families.spec import Size, called

Kind = Literal["linear_attention", "full_attention"]
LINEAR: Kind = "linear_attention"
ATTENTION: Kind = "full_attention"


class DeltaLatentSpec(LatentSpec, LayersOfTypesSpec, GroupedExpertsSpec):
    """`layer_types`: what each layer is; without it those that `attends` says attend."""

    can = Abilities()
    held_in = {}  # checkpoints are read by a pattern of their own, which PEFT does not follow (`_MODEL_TO_CONVERSION_PATTERN`)

    q_lora_rank: Size | None = None
    num_experts_per_tok: Size = called("num_experts_per_token", 8)
    n_shared_experts: Size = called("num_shared_experts", 1)
    norm_topk_prob: bool = called("moe_renormalize", True)
    attention_bias: bool = False
    linear_head_dim: Size = 128
    layer_types: tuple[Kind, ...] | None = None

    def attends(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has latent attention."""
        raise NotImplementedError

    @property
    def state(self) -> CacheLayer:
        """What a layer of delta attention keeps."""
        raise NotImplementedError

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each layer is."""
        return self.layer_types or tuple([ATTENTION if self.attends(i) else LINEAR for i in range(self.num_hidden_layers)])

    @property
    def cached_per_token(self) -> int | None:
        """A latent and the shared part of a key, in the layers of attention alone: the others keep a state of fixed size."""
        return self.kinds.count(ATTENTION) * (self.kv_lora_rank + self.head_dim)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """A latent where it attends, a state elsewhere."""
        kept = {LINEAR: self.state, ATTENTION: latent(self.kv_lora_rank + self.head_dim)}
        return tuple(kept[kind] for kind in self.kinds)

    @model_validator(mode="after")
    def _of_each_layer(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.kinds]}
