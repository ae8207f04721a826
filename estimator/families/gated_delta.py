"""Decoders in which layers of gated delta nets alternate with layers of gated attention.

After transformers' modeling_qwen3_next.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention, mamba_state
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import Alone, PreNorm
from estimator.families.delta_rule import chunk_gated_delta_rule
from estimator.families.each_layer import check_each_named
from estimator.families.gemma import RMSNorm
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.mamba2 import causal_conv1d
from estimator.families.modules import ACTIVATIONS, Module, rotate_part
from estimator.families.rotary import PartialRotarySpec
from estimator.families.spec import DecoderSpec, Size
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, exp, mean_last, mul, neg, pow_scalar, rsqrt, sigmoid, silu, softplus, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, contiguous, reshape, split, transpose

Kind = Literal["linear_attention", "full_attention"]
LINEAR: Kind = "linear_attention"
ATTENTION: Kind = "full_attention"


class GatedDeltaSpec(PartialRotarySpec):
    """Each `full_attention_interval`-th layer attends, unless `layer_types` says which ones do; the others are delta nets."""

    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.25
    max_position_embeddings: Size | None = 32768
    attention_bias: bool = False
    linear_conv_kernel_dim: Size = 4
    linear_key_head_dim: Size = 128
    linear_value_head_dim: Size = 128
    linear_num_key_heads: Size = 16
    linear_num_value_heads: Size = 32
    full_attention_interval: Size = 4
    layer_types: tuple[Kind, ...] | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each layer is."""
        attends = [(i + 1) % self.full_attention_interval == 0 for i in range(self.num_hidden_layers)]
        return self.layer_types or tuple([ATTENTION if each else LINEAR for each in attends])

    @property
    def key_size(self) -> int:
        """Numbers of all key heads of a delta net."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_size(self) -> int:
        """Numbers of all value heads of a delta net."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def cached_per_token(self) -> int | None:
        """Numbers that one token adds to the cache, in the layers of attention alone: the others keep a state of fixed size."""
        return 2 * self.kinds.count(ATTENTION) * self.num_key_value_heads * self.head_dim

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        convolved = 2 * self.key_size + self.value_size
        state = mamba_state(self.value_size, convolved, self.linear_key_head_dim, self.linear_conv_kernel_dim)
        full = attention(self.num_key_value_heads, self.head_dim)
        return tuple([state if kind == LINEAR else full for kind in self.kinds])

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"head_dim": 256}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        if values % keys:
            raise ValueError(f"linear_num_value_heads {values} is not a multiple of linear_num_key_heads {keys}")
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.kinds]}


class RMSNormGated:
    """Normalisation in float32, before a gate."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        out = mul(self.weight, to(out, x.dtype))
        out = mul(out, silu(to(gate, dtypes.float32)))
        result = to(out, x.dtype)
        del variance
        return result


class GatedDeltaNet:
    """A layer's mixer. Queries, keys, values and gates are made by one linear layer, beta and decay by another."""

    def __init__(self, spec: GatedDeltaSpec, build: Builder):
        self.spec, self.unrolled = spec, build.unrolled
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.dt_bias = build.parameter("linear_attn.dt_bias", (spec.linear_num_value_heads,))
        self.a_log = build.parameter("linear_attn.A_log", (spec.linear_num_value_heads,))
        channels = 2 * spec.key_size + spec.value_size
        self.conv_weight = build.parameter("linear_attn.conv1d.weight", (channels, 1, spec.linear_conv_kernel_dim))
        self.make_modules(spec, build)

    def make_modules(self, spec: GatedDeltaSpec, build: Builder) -> None:
        """Its linear layers and its norm, in the order in which the real module makes them."""
        hidden = spec.hidden_size
        self.in_proj_qkvz = build.linear("linear_attn.in_proj_qkvz", hidden, 2 * (spec.key_size + spec.value_size))
        self.in_proj_ba = build.linear("linear_attn.in_proj_ba", hidden, 2 * spec.linear_num_value_heads)
        self.norm = RMSNormGated(build.parameter("linear_attn.norm.weight", (spec.linear_value_head_dim,)))
        self.out_proj = build.linear("linear_attn.out_proj", spec.value_size, hidden)

    def project(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """What the convolution gets, [batch, channels, tokens]; gates [batch, tokens, heads, size]; beta's and decay's inputs;
        and what is held."""
        qkvz = self.in_proj_qkvz(hidden)
        ba = self.in_proj_ba(hidden)
        q, k, v, z, b, a = self._ordered(qkvz, ba)
        joined = cat((q, k, v), -1)
        return transpose(joined, 1, 2), z, b, a, qkvz, ba, q, k, v

    def _ordered(self, qkvz: Tensor, ba: Tensor) -> list[Tensor]:
        """`fix_query_key_value_ordering`: the parts of each key head, put together."""
        spec, (batch, tokens, _) = self.spec, qkvz.shape
        groups = spec.linear_num_key_heads
        shared = spec.linear_num_value_heads // groups
        keys, values = spec.linear_key_head_dim, shared * spec.linear_value_head_dim
        parts = split(reshape(qkvz, (batch, tokens, groups, -1)), (keys, keys, values, values), 3)
        q, k, v, z = parts
        b, a = split(reshape(ba, (batch, tokens, groups, -1)), (shared, shared), 3)
        del parts
        v, z = [reshape(t, (batch, tokens, -1, spec.linear_value_head_dim)) for t in (v, z)]
        b, a = [reshape(t, (batch, tokens, -1)) for t in (b, a)]
        q, k, v = [reshape(t, (batch, tokens, -1)) for t in (q, k, v)]
        return [q, k, v, z, b, a]

    def __call__(self, hidden: Tensor) -> Tensor:
        spec, (batch, tokens, _) = self.spec, hidden.shape
        mixed, z, b, a, *held = self.project(hidden)
        kernel = self.conv_weight.shape[-1]
        mixed = causal_conv1d(mixed, reshape(self.conv_weight, (-1, kernel)), None, self.activation)
        mixed = transpose(mixed, 1, 2)
        q, k, v = split(mixed, (spec.key_size, spec.key_size, spec.value_size), 2)
        del held[2:]
        q, k = [reshape(t, (batch, tokens, -1, spec.linear_key_head_dim)) for t in (q, k)]
        v = reshape(v, (batch, tokens, -1, spec.linear_value_head_dim))
        beta = sigmoid(b)
        g = mul(neg(exp(to(self.a_log, dtypes.float32))), softplus(add(to(a, dtypes.float32), self.dt_bias)))
        out = chunk_gated_delta_rule(q, k, v, g, beta, self.unrolled)
        flat = reshape(out, (-1, spec.linear_value_head_dim))
        z = reshape(z, (-1, spec.linear_value_head_dim))
        out = self.norm(flat, z)
        del flat
        out = reshape(out, (batch, tokens, -1))
        out = self.out_proj(out)
        del mixed, q, k, v, z, b, a, beta, g, held
        return out


class GatedAttention(GroupedQueryAttention):
    """Attention whose output is multiplied by a gate, which its layer of queries makes, too."""

    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, 2 * queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear(f"self_attn.{output}", queries, spec.hidden_size, output_bias)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        q_norm, k_norm = self.q_norm, self.k_norm
        assert q_norm
        assert k_norm
        batch, tokens, _ = hidden.shape
        size, heads = self.head_dim, (batch, tokens, -1, self.head_dim)
        q, gate = split(reshape(self.q_proj(hidden), (batch, tokens, -1, 2 * size)), (size, size), 3)
        gate = reshape(gate, (batch, tokens, -1))
        q = transpose(q_norm(reshape(q, heads)), 1, 2)
        k = transpose(k_norm(reshape(self.k_proj(hidden), heads)), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        q, k, *_ = self.rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = mul(out, sigmoid(gate))
        out = self.o_proj(out)
        return out, weights


def gated_attention(spec: GatedDeltaSpec, build: Builder) -> GatedAttention:
    """With norms of queries and keys, and part of each head rotated."""
    bias = spec.attention_bias

    def norm(which: str, _: int) -> Module:
        return RMSNorm(build, f"self_attn.{which}_norm", spec.head_dim)

    return GatedAttention(spec, build, bias, bias, norm=norm, rotate=rotate_part)


def delta_decoder(
    spec: GatedDeltaSpec,
    build: Builder,
    mlp: Callable[[bool], Module],
    sparse: Sequence[bool],
    net: type[GatedDeltaNet] = GatedDeltaNet,
    rotary: type[Rotary] = Rotary,
) -> Decoder:
    """The body of a model. `mlp`: makes a layer's feed-forward layer, or its experts where it is `sparse`."""
    norm = partial(RMSNorm, build)

    def layer(kind: tuple[Kind, bool]) -> PreNorm:
        mixer = Alone(net(spec, build)) if kind[0] == LINEAR else gated_attention(spec, build)
        return PreNorm(spec, build, mixer, mlp(kind[1]), norm)

    def sees(kind: tuple[Kind, bool]) -> LayerType | None:
        return None if kind[0] == LINEAR else FULL

    kinds = list(zip(spec.kinds, sparse, strict=True))
    handed = build.images is None  # positions in three dimensions are not
    return Decoder(spec, build, layer, kinds, rotary=rotary(spec.rotary_size), norm=norm, sees=sees, positioned=handed)
