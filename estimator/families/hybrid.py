"""Decoders in which layers of Mamba-2 stand beside layers of attention: what their configurations have in common.

After transformers' configuration_bamba.py, configuration_falcon_h1.py and configuration_granitemoehybrid.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention, mamba_state
from estimator.families.decoder import Rotary, Table
from estimator.families.mamba2 import MixerSizes
from estimator.families.spec import DecoderSpec, Size
from estimator.families.windows import FULL, LayerType
from estimator.tape.dtypes import DType
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose

Kind = Literal["linear_attention", "full_attention"]
MAMBA: Kind = "linear_attention"
ATTENTION: Kind = "full_attention"


class HybridSpec(DecoderSpec):
    """A decoder whose layers are of several kinds, of which only those of attention keep all tokens."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each layer is, from the first on."""
        raise NotImplementedError

    @property
    def keeps(self) -> Mapping[str, tuple[CacheLayer, ...]]:
        """What a layer of each kind keeps of a sequence; one that is not named keeps nothing."""
        return {MAMBA: (self.state,), ATTENTION: (attention(self.num_key_value_heads, self.head_dim),)}

    @property
    def state(self) -> CacheLayer:
        """What a Mamba mixer keeps of a sequence."""
        raise NotImplementedError

    @property
    def cached_per_token(self) -> int | None:
        """Numbers that one token adds to the KV cache, in the layers of attention alone: the others keep a state of fixed
        size."""
        tokens = [kept for kept in self.cache_layers if kept.kind != "state"]
        return sum(kept.heads * (kept.key_size + kept.value_size) for kept in tokens)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        keeps = self.keeps
        return tuple([kept for kind in self.kinds for kept in keeps.get(kind, ())])

    @property
    def cache_places(self) -> tuple[int, ...]:
        keeps = self.keeps
        return tuple([place for place, kind in enumerate(self.kinds) for _ in keeps.get(kind, ())])


class Mamba2HybridSpec(HybridSpec):
    """A hybrid whose configuration names its mixers' sizes `mamba_...`; without `mamba_d_head`, or with "auto", heads share the
    mixer's width."""

    made: ClassVar[frozenset[str]] = frozenset({"mamba_d_head"})
    width_key: ClassVar[str | None] = None
    """The field that says how wide a mixer is, where `mamba_expand` need not."""

    mamba_n_heads: Size = 128
    mamba_d_head: Size
    mamba_d_state: Size = 256
    mamba_n_groups: Size = 1
    mamba_d_conv: Size = 4
    mamba_expand: Size = 2
    mamba_chunk_size: Size = 256
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    attention_bias: bool = False

    @property
    def mixer_width(self) -> int:
        """Channels of a mixer, those of all its heads."""
        return self.mamba_expand * self.hidden_size

    @property
    def mixer(self) -> MixerSizes:
        """The sizes of a Mamba-2 mixer."""
        return MixerSizes(
            self.hidden_size,
            self.mamba_n_heads,
            self.mamba_d_head,
            self.mamba_d_state,
            self.mamba_n_groups,
            self.mamba_d_conv,
            self.mamba_chunk_size,
            self.mamba_proj_bias,
            self.mamba_conv_bias,
            self.hidden_act,
        )

    @property
    def state(self) -> CacheLayer:
        inner = self.mamba_n_heads * self.mamba_d_head
        return mamba_state(inner, inner + 2 * self.mamba_n_groups * self.mamba_d_state, self.mamba_d_state, self.mamba_d_conv)

    @model_validator(mode="before")
    @classmethod
    def _head_size(cls, given: Any) -> Any:
        """A size of heads that follows from the mixer's width."""
        if not isinstance(given, Mapping) or given.get("mamba_d_head", "auto") != "auto":
            return given
        fields, made = cls.model_fields, dict(given)
        hidden, heads, expand = (
            made.get(name, fields[name].get_default()) for name in ("hidden_size", "mamba_n_heads", "mamba_expand")
        )
        width = made.get(cls.width_key, fields[cls.width_key].get_default()) if cls.width_key else None
        if width is None and isinstance(hidden, int) and isinstance(expand, int):
            width = expand * hidden
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            made["mamba_d_head"] = width // heads
        return made

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.mamba_d_head * self.mamba_n_heads != self.mixer_width:
            width = self.width_key if self.width_key and getattr(self, self.width_key) else "mamba_expand x hidden_size"
            raise ValueError(f"mamba_d_head x mamba_n_heads is not {width}")
        if self.mamba_n_heads % self.mamba_n_groups:
            raise ValueError(f"mamba_n_heads {self.mamba_n_heads} is not a multiple of mamba_n_groups {self.mamba_n_groups}")
        return self


class Unrotated(Rotary):
    """No rotary embedding: a recurrence tells the order of tokens."""

    def __init__(self) -> None:
        super().__init__(0)

    def buffers(self, build: Builder) -> list[Tensor]:
        return []

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        return {FULL: ()}


class UnrotatedAttention:
    """Grouped-query attention without positions and biases (`NemotronHAttention`, `JambaAttention`), called `name` in a layer."""

    def __init__(self, spec: DecoderSpec, build: Builder, name: str = "self_attn"):
        queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.head_dim = spec.head_dim
        self.q_proj = build.linear(name + ".q_proj", spec.hidden_size, queries)
        self.k_proj = build.linear(name + ".k_proj", spec.hidden_size, keys)
        self.v_proj = build.linear(name + ".v_proj", spec.hidden_size, keys)
        self.o_proj = build.linear(name + ".o_proj", queries, spec.hidden_size)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What each token gets, [batch, tokens, hidden], and the weights where the implementation returns them."""
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        return self.o_proj(out), weights
