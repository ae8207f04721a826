"""OLMo Hybrid: gated delta nets, with norms before their blocks, and OLMo 2's attention without positions, with norms after them.

After transformers' modeling_olmo_hybrid.py (5.23), without the packages flash-linear-attention and causal-conv1d.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, mamba_state
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import Alone, PostNorm, PreNorm
from estimator.families.delta_rule import chunk_gated_delta_rule
from estimator.families.each_layer import check_each_named
from estimator.families.feed_forward import GatedMLP
from estimator.families.gated_delta import RMSNormGated
from estimator.families.grouped_query import GroupedQueryAttention, normed_whole
from estimator.families.heads import language_model
from estimator.families.hybrid import ATTENTION, MAMBA, HybridSpec, Kind, Unrotated
from estimator.families.mamba2 import causal_conv1d
from estimator.families.modules import ACTIVATIONS, Module
from estimator.families.norms import WideRMSNorm
from estimator.families.spec import Size
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.pointwise import add, exp, mul, mul_scalar, neg, sigmoid, softplus, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, reshape, split, transpose

UNROTATED = {"rope_theta": None, "rope_type": "default"}
"""What published configurations say of positions: there are none. Where nothing is said, transformers' class rotates."""


class OlmoHybridSpec(HybridSpec):
    """Each fourth layer attends, unless `layer_types` says which ones do. Keys of a delta net are three quarters as wide as the
    model unless their size is said, values twice as wide as keys. `linear_allow_neg_eigval`: beta is doubled."""

    can = Abilities()
    made = frozenset({"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"})
    modelled = {"rope_parameters": (UNROTATED,)}

    max_position_embeddings: Size | None = 65536
    attention_bias: bool = False
    layer_types: tuple[Kind, ...] | None = None
    linear_num_key_heads: Size
    linear_num_value_heads: Size
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    linear_conv_kernel_dim: Size = 4
    linear_allow_neg_eigval: bool = True

    @model_validator(mode="before")
    @classmethod
    def _sizes(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = {name: value for name, value in given.items() if not (name in cls.made and value is None)}
        hidden, heads = said.get("hidden_size"), said.get("num_attention_heads")
        if not (isinstance(hidden, int) and isinstance(heads, int) and heads > 0):
            return said
        keys = said.setdefault("linear_num_key_heads", heads)
        said.setdefault("linear_num_value_heads", heads)
        if isinstance(keys, int) and keys > 0:
            size = said.setdefault("linear_key_head_dim", int(0.75 * hidden / keys))
            if isinstance(size, int):
                said.setdefault("linear_value_head_dim", 2 * size)
        return said

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each layer is; where none would attend, the last does."""
        layers = self.num_hidden_layers
        last = layers - 1 if layers < 4 else None
        return self.layer_types or tuple([ATTENTION if i % 4 == 3 or i == last else MAMBA for i in range(layers)])

    @property
    def key_size(self) -> int:
        """Numbers of all key heads of a delta net."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_size(self) -> int:
        """Numbers of all value heads of a delta net."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def state(self) -> CacheLayer:
        channels = 2 * self.key_size + self.value_size
        return mamba_state(self.value_size, channels, self.linear_key_head_dim, self.linear_conv_kernel_dim)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_each_named(self.kinds, self.num_hidden_layers)
        if len({*self.kinds}) == 1:
            raise ValueError("its layers must be of both kinds, linear_attention and full_attention: at least two")
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        if values % keys:
            raise ValueError(f"linear_num_value_heads {values} is not a multiple of linear_num_key_heads {keys}")
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.kinds], "rope_parameters": UNROTATED}


SPECS = {"olmo_hybrid": OlmoHybridSpec}


class DeltaNet:
    """A layer's mixer, of which each part has a linear layer of its own (`OlmoHybridGatedDeltaNet`)."""

    def __init__(self, spec: OlmoHybridSpec, build: Builder):
        self.spec, self.unrolled, self.activation = spec, build.unrolled, ACTIVATIONS[spec.hidden_act]
        hidden, keys, values, heads = spec.hidden_size, spec.key_size, spec.value_size, spec.linear_num_value_heads
        self.a_log = build.parameter("linear_attn.A_log", (heads,), dtype=dtypes.float32)
        self.dt_bias = build.parameter("linear_attn.dt_bias", (heads,))
        self.q_proj = build.linear("linear_attn.q_proj", hidden, keys)
        self.k_proj = build.linear("linear_attn.k_proj", hidden, keys)
        self.v_proj = build.linear("linear_attn.v_proj", hidden, values)
        self.a_proj = build.linear("linear_attn.a_proj", hidden, heads)
        self.b_proj = build.linear("linear_attn.b_proj", hidden, heads)
        self.g_proj = build.linear("linear_attn.g_proj", hidden, values)
        self.o_proj = build.linear("linear_attn.o_proj", values, hidden)
        self.conv_weight = build.parameter("linear_attn.conv1d.weight", (2 * keys + values, 1, spec.linear_conv_kernel_dim))
        self.o_norm = RMSNormGated(build.parameter("linear_attn.o_norm.weight", (spec.linear_value_head_dim,)))

    def __call__(self, hidden: Tensor) -> Tensor:
        spec, (batch, tokens, _) = self.spec, hidden.shape
        mixed = transpose(cat((self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)), -1), 1, 2)
        kernel = self.conv_weight.shape[-1]
        mixed = causal_conv1d(mixed, reshape(self.conv_weight, (-1, kernel)), None, self.activation)
        q, k, v = split(transpose(mixed, 1, 2), (spec.key_size, spec.key_size, spec.value_size), 2)
        q = reshape(q, (batch, tokens, -1, spec.linear_key_head_dim))
        k = reshape(k, (batch, tokens, -1, spec.linear_key_head_dim))
        v = reshape(v, (batch, tokens, -1, spec.linear_value_head_dim))
        beta = sigmoid(self.b_proj(hidden))
        if spec.linear_allow_neg_eigval:
            beta = mul_scalar(beta)
        decay = neg(exp(to(self.a_log, dtypes.float32)))
        g = mul(decay, softplus(add(to(self.a_proj(hidden), dtypes.float32), self.dt_bias)))
        del decay
        out = chunk_gated_delta_rule(q, k, v, g, beta, self.unrolled)
        gate = self.g_proj(hidden)
        out = reshape(out, (-1, spec.linear_value_head_dim))
        gate = reshape(gate, (-1, spec.linear_value_head_dim))
        out = self.o_norm(out, gate)
        out = reshape(out, (batch, tokens, -1))
        out = self.o_proj(out)
        del mixed, q, k, v, beta, g, gate
        return out


class UnrotatedAttention(GroupedQueryAttention):
    """With norms over all queries and all keys, and without positions."""

    def __init__(self, spec: OlmoHybridSpec, build: Builder):
        def norm(which: str, heads: int) -> Module:
            return WideRMSNorm(build, f"self_attn.{which}_norm", heads * spec.head_dim)

        super().__init__(spec, build, spec.attention_bias, spec.attention_bias, norm=norm, project=normed_whole)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        batch, tokens, _ = hidden.shape
        q, k, v, *_ = self.project(self, hidden, (batch, tokens, -1, self.head_dim))
        out, weights = self.attend(q, k, v, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights


def olmo_hybrid(spec: OlmoHybridSpec, build: Builder) -> Decoder:
    """The body of the model."""
    norm = partial(WideRMSNorm, build)

    def layer(kind: Kind) -> PreNorm | PostNorm:
        if kind == ATTENTION:
            return PostNorm(spec, build, UnrotatedAttention(spec, build), GatedMLP(spec, build), norm)
        made = PreNorm(spec, build, Alone(lambda hidden: hidden), GatedMLP(spec, build), norm)
        made.self_attn = Alone(DeltaNet(spec, build))  # which is made last
        return made

    def sees(kind: Kind) -> LayerType | None:
        return FULL if kind == ATTENTION else None

    return Decoder(spec, build, layer, spec.kinds, rotary=Unrotated(), norm=norm, sees=sees)


HEADS = language_model(olmo_hybrid)
