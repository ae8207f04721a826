"""What configs of Gemma 4's language models say, after transformers' configuration_gemma4.py (5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.gemma import Cap
from estimator.families.spec import Activation, Size, called
from estimator.families.windows import FULL, LayerType, WindowedSpec

PER_LAYER = "per_layer_config"
SGLANG = "0.5.10"
"""The release of SGLang with which Gemma 4 came (its pull request 21952, April 2026), with a pool for layers with a window."""


class Kind(NamedTuple):
    """A layer's: what it sees, and whether it hands keys and values on (`store`) or takes those of an earlier one (`reuse`)."""

    sees: LayerType
    shares: Literal["store", "reuse"] | None = None


class SharingSpec(WindowedSpec):
    """`num_kv_shared_layers`: the last ones, which have no keys and values of their own."""

    attention_bias: bool = False
    num_kv_shared_layers: Annotated[int, Field(ge=0, le=2**12)] = 0

    @property
    def roles(self) -> tuple[Kind, ...]:
        """The kind of each layer (`kv_sharing_modes`)."""
        kinds, shared = self.kinds, self.num_kv_shared_layers
        if not shared:
            return tuple(map(Kind, kinds))
        own = kinds[: len(kinds) - shared]
        stores = {len(own) - 1 - own[::-1].index(kind) for kind in set(own)}
        before = [Kind(kind, "store" if i in stores else None) for i, kind in enumerate(own)]
        return (*before, *(Kind(kind, "reuse") for kind in kinds[len(own) :]))

    def heads_of(self, kind: LayerType) -> tuple[int, int]:
        """How many heads of keys a layer of a kind has, and the size of its heads."""
        return self.num_key_value_heads, self.head_dim

    @property
    def keeping(self) -> tuple[LayerType, ...]:
        """What the layers see that have keys and values of their own."""
        return self.kinds[: self.num_hidden_layers - self.num_kv_shared_layers]

    @property
    def tail(self) -> int:
        """Layers at the end of which each kind's last one makes the gradient of what it takes; the others add to that."""
        reusing = [role for role in self.roles[::-1] if role.shares == "reuse"]
        return max((reusing.index(role) + 1 for role in set(reusing)), default=1)

    @property
    def cached_per_token(self) -> int | None:
        return sum(2 * keys * size for keys, size in map(self.heads_of, self.keeping))

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        window = self.sliding_window
        return tuple([attention(*self.heads_of(kind), None if kind == FULL else window) for kind in self.keeping])

    @model_validator(mode="after")
    def _shared(self) -> Self:
        if self.num_kv_shared_layers and set(self.keeping) != set(self.kinds):
            raise ValueError(f"num_kv_shared_layers {self.num_kv_shared_layers} leaves no layer of each type before them")
        return self


class Gemma4Spec(SharingSpec):
    """`attention_k_eq_v`: layers that see everything have no values of their own, and may have another number of key heads.
    `hidden_size_per_layer_input`: of what each layer gets of each token beside hidden states; 0: nothing.
    `num_kv_shared_layers`: the last ones, which have no keys and values of their own, and with `use_double_wide_mlp` feed-forward
    layers of twice the width. `use_bidirectional_attention`: whose tokens see each other; without images it changes nothing.

    The last layer sees everything, whatever its type is said to be.
    """

    can = Abilities(gguf=True, graph="gemma-4", mlx_routers="8 bits")
    window_pool = SGLANG
    default_period = 6
    modelled = {"use_bidirectional_attention": (None, "vision")}

    max_position_embeddings: Size | None = 131072
    hidden_act: Activation = called("hidden_activation", "gelu_pytorch_tanh")
    tie_word_embeddings: bool = True
    sliding_window: Size = 512
    use_bidirectional_attention: Literal["vision"] | None = None
    global_head_dim: Size = 512
    num_global_key_value_heads: Size | None = None
    attention_k_eq_v: bool = False
    vocab_size_per_layer_input: Size = 262144
    hidden_size_per_layer_input: Annotated[int, Field(ge=0, le=2**31)] = 256
    use_double_wide_mlp: bool = False
    final_logit_softcapping: Cap | None = None
    enable_moe_block: bool = False
    num_experts: Size | None = None
    num_experts_per_tok: Size | None = called("top_k_experts", None)
    moe_intermediate_size: Size | None = None

    @property
    def kinds(self) -> tuple[LayerType, ...]:
        return (*super().kinds[:-1], FULL)

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 4, "head_dim": 256}

    @property
    def expert_size(self) -> int | None:
        """Width of one expert."""
        return self.moe_intermediate_size

    def heads_of(self, kind: LayerType) -> tuple[int, int]:
        """How many heads of keys a layer of a kind has, and the size of its heads."""
        if kind != FULL:
            return self.num_key_value_heads, self.head_dim
        own = self.num_global_key_value_heads if self.attention_k_eq_v else None
        return own or self.num_key_value_heads, self.global_head_dim

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {PER_LAYER}

    @model_validator(mode="before")
    @classmethod
    def _by_layer(cls, given: Any) -> Any:
        """What transformers 5.23 writes of layers that see everything in the place of what it read."""
        if not isinstance(given, Mapping) or PER_LAYER not in given:
            return given
        made = {name: value for name, value in given.items() if name != PER_LAYER}
        said = given[PER_LAYER]
        each = list(said.values()) if isinstance(said, Mapping) else [said]
        if not all(isinstance(one, Mapping) and one == each[0] for one in each):
            raise ValueError(f"{PER_LAYER} should say the same of each layer that sees everything")
        first = each[0] if each else {}
        made.setdefault("global_head_dim", first.get("head_dim", made.get("head_dim", 256)))
        if "num_key_value_heads" in first:
            made.setdefault("num_global_key_value_heads", first["num_key_value_heads"])
        return made

    @model_validator(mode="after")
    def _experts(self) -> Self:
        named = (self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)
        if self.enable_moe_block and None in named:
            raise ValueError("enable_moe_block wants num_experts, top_k_experts and moe_intermediate_size")
        if self.enable_moe_block and (self.num_experts_per_tok or 0) > (self.num_experts or 0):
            raise ValueError(f"top_k_experts {self.num_experts_per_tok} is more than the {self.num_experts} experts")
        if self.num_attention_heads % self.heads_of(FULL)[0] or self.global_head_dim % 2:
            raise ValueError("num_global_key_value_heads does not divide num_attention_heads, or global_head_dim is odd")
        return self


class Gemma4UnifiedTextSpec(Gemma4Spec):
    """The 12B's, without embeddings for each layer and without experts."""

    can = Abilities(gguf=True, graph="gemma-4", mlx_routers="8 bits")
    window_pool = SGLANG
    default_period = 6

    max_position_embeddings: Size | None = 262144
    sliding_window: Size = 1024
    use_bidirectional_attention: Literal["vision"] | None = "vision"
    hidden_size_per_layer_input: Literal[0] = 0
    enable_moe_block: Literal[False] = False
