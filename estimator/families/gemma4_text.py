"""Gemma 4's language models: Gemma 3 with a norm of values, wide heads in layers that see everything, and experts beside its MLP.

The small ones (E2B and E4B) have embeddings for each layer, and last layers that take keys and values of earlier ones.
After transformers' modeling_gemma4.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.experts import Experts
from estimator.families.feed_forward import GatedMLP
from estimator.families.gemma import Cap, Gemma2CausalLM
from estimator.families.heads import CausalLM
from estimator.families.modules import ACTIVATIONS, Module, rotary_table, rotated, token_positions
from estimator.families.rotary import frequencies
from estimator.families.spec import Activation, Size, called
from estimator.families.windows import FULL, LayerType, WindowedSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, add_scalar, div_, mean_last, mul, mul_, mul_scalar, pow_scalar, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import index, reshape, select, transpose, unsqueeze

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

    can = Abilities()
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

    can = Abilities()
    window_pool = SGLANG
    default_period = 6

    max_position_embeddings: Size | None = 262144
    sliding_window: Size = 1024
    use_bidirectional_attention: Literal["vision"] | None = "vision"
    hidden_size_per_layer_input: Literal[0] = 0
    enable_moe_block: Literal[False] = False


PER_LAYER = "per_layer_config"
Keys = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(hidden states, cosines, sines) -> a layer's own keys and values."""
States = dict[LayerType, tuple[Tensor, Tensor]]
"""Keys and values that layers take of earlier ones, by what both see (`KVSharingDict`)."""
SPECS = {"gemma4_text": Gemma4Spec, "gemma4_unified_text": Gemma4UnifiedTextSpec}


class RMSNorm:
    """Root-mean-square normalisation in float32 by a power of -1/2; its weight, where it has one, is in float32 too."""

    def __init__(self, build: Builder, name: str, size: int, weighted: bool = True):
        self.weight = build.parameter(name + ".weight", (size,)) if weighted else None

    def _norm(self, x: Tensor) -> Tensor:
        mean = add_scalar(mean_last(pow_scalar(x)))
        return mul(x, pow_scalar(mean))

    def __call__(self, x: Tensor) -> Tensor:
        out = self._norm(to(x, dtypes.float32))
        if self.weight is not None:
            out = mul(out, to(self.weight, dtypes.float32))
        return to(out, x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding of [batch, tokens, heads, size]."""
    c, s = unsqueeze(cos, 2), unsqueeze(sin, 2)
    return rotated(x, c, s)


class Gemma4Attention:
    """Queries and keys are normalised and rotated before they are transposed; values are normalised without a weight."""

    def __init__(self, spec: SharingSpec, build: Builder, kind: Kind, own: Callable[[], Keys]):
        _, self.head_dim = spec.heads_of(kind.sees)
        size, queries, bias = spec.hidden_size, spec.num_attention_heads * self.head_dim, spec.attention_bias
        self.kind = kind
        self.q_proj = build.linear("self_attn.q_proj", size, queries, bias)
        self.q_norm = RMSNorm(build, "self_attn.q_norm", self.head_dim)
        self.own = None if kind.shares == "reuse" else own()
        self.o_proj = build.linear("self_attn.o_proj", queries, size, bias)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, states: States
    ) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q = reshape(self.q_proj(hidden), (batch, tokens, -1, self.head_dim))
        q = self.q_norm(q)
        q = turned(q, cos, sin)
        q = transpose(q, 1, 2)
        k, v = states[self.kind.sees] if self.own is None else self.own(hidden, cos, sin)
        if self.kind.shares == "store":
            states[self.kind.sees] = k, v
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        out = self.o_proj(out)
        return out, weights


class KeysAndValues:
    """A layer's own."""

    def __init__(self, spec: Gemma4Spec, build: Builder, sees: LayerType):
        keys, self.head_dim = spec.heads_of(sees)
        size, bias = spec.hidden_size, spec.attention_bias
        self.k_norm = RMSNorm(build, "self_attn.k_norm", self.head_dim)
        self.v_norm = RMSNorm(build, "self_attn.v_norm", self.head_dim, weighted=False)
        self.k_proj = build.linear("self_attn.k_proj", size, keys * self.head_dim, bias)
        self.v_proj: Module | None = None
        if sees != FULL or not spec.attention_k_eq_v:
            self.v_proj = build.linear("self_attn.v_proj", size, keys * self.head_dim, bias)
        self.cache = build.cache() if build.cache else None

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        heads = (*hidden.shape[:2], -1, self.head_dim)
        k = reshape(self.k_proj(hidden), heads)
        v = k if self.v_proj is None else reshape(self.v_proj(hidden), heads)
        k = self.k_norm(k)
        k = turned(k, cos, sin)
        k = transpose(k, 1, 2)
        v = self.v_norm(v)
        v = transpose(v, 1, 2)
        return (k, v) if self.cache is None else self.cache.update(k, v)


class Router:
    """Softmax over all experts, then the best ones, whose weights sum to one and are multiplied by a number of each expert."""

    def __init__(self, spec: Gemma4Spec, build: Builder):
        experts = spec.num_experts or 0
        self.top_k = spec.num_experts_per_tok or 0
        self.norm = RMSNorm(build, "router.norm", spec.hidden_size, weighted=False)
        self.scale = build.parameter("router.scale", (spec.hidden_size,))
        self.per_expert_scale = build.parameter("router.per_expert_scale", (experts,))
        self.proj = build.router("router.proj", spec.hidden_size, experts)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.norm(x)
        hidden = mul_scalar(mul(hidden, self.scale))
        scores = self.proj(hidden)
        probabilities = softmax(scores, dtypes.float32)
        weights, chosen = topk(probabilities, self.top_k)
        weights = div_(weights, sum_dim(weights, -1, keepdim=True))
        weights = mul(weights, index(self.per_expert_scale, (chosen,), chosen.shape))
        return probabilities, weights, chosen


class Gemma4Layer:
    """Gemma 3's, which may get something of each token beside hidden states; its result is multiplied by a number in place."""

    def __init__(self, spec: Gemma4Spec, build: Builder, kind: Kind):
        size = spec.hidden_size
        norm = partial(RMSNorm, build, size=size)
        doubled = spec.use_double_wide_mlp and kind.shares == "reuse"
        self.self_attn = Gemma4Attention(spec, build, kind, lambda: KeysAndValues(spec, build, kind.sees))
        self.mlp = GatedMLP(spec, build, width=spec.intermediate_size * (2 if doubled else 1))
        self.before_attention, self.after_attention = norm("input_layernorm"), norm("post_attention_layernorm")
        self.before_mlp, self.after_mlp = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
        self.layer_scalar = build.buffer("layer_scalar", (1,), build.dtype)
        self.beside = Beside(spec, build) if spec.hidden_size_per_layer_input else None
        self.mixture = Mixture(spec, build) if spec.enable_moe_block else None

    def __call__(self, hidden: Tensor, own: Tensor | None, *shared: Any) -> Tensor:
        residual = hidden
        out = self.before_attention(hidden)
        out, other = self.self_attn(out, *shared[:-1])
        out = self.after_attention(out)
        out = add(residual, out)
        residual = out
        out = self.before_mlp(out)
        out = self.mlp(out)
        if self.mixture is not None:
            dense = self.mixture.after_dense(out)
            flat = reshape(residual, (-1, residual.shape[-1]))
            other, weights, chosen = self.mixture.router(flat)
            sparse = self.mixture.before_experts(flat)
            sparse = self.mixture.experts(sparse, chosen, weights)
            sparse = reshape(sparse, residual.shape)
            sparse = self.mixture.after_experts(sparse)
            out = add(dense, sparse)
        out = self.after_mlp(out)
        out = add(residual, out)
        if self.beside is not None and own is not None:
            residual = out
            out = self.beside(out, own)
            out = add(residual, out)
        out = mul_(out, self.layer_scalar)
        del other
        return out


class Mixture:
    """Experts, which see what the feed-forward layer beside them sees before its norm."""

    def __init__(self, spec: Gemma4Spec, build: Builder):
        size = spec.hidden_size
        self.router, self.experts = Router(spec, build), Experts(spec, build, "experts")
        self.after_dense = RMSNorm(build, "post_feedforward_layernorm_1", size)
        self.after_experts = RMSNorm(build, "post_feedforward_layernorm_2", size)
        self.before_experts = RMSNorm(build, "pre_feedforward_layernorm_2", size)


class PerLayerSizes(Protocol):
    """What a spec says of what layers get beside hidden states."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def hidden_act(self) -> Activation: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def hidden_size_per_layer_input(self) -> int: ...
    @property
    def vocab_size_per_layer_input(self) -> int: ...


class Beside:
    """What a layer makes of what it gets of each token beside hidden states."""

    def __init__(self, spec: PerLayerSizes, build: Builder):
        size, given = spec.hidden_size, spec.hidden_size_per_layer_input
        self.gate = build.linear("per_layer_input_gate", size, given)
        self.projection = build.linear("per_layer_projection", given, size)
        self.norm = RMSNorm(build, "post_per_layer_input_norm", size)
        self.activation = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor, own: Tensor) -> Tensor:
        out = self.gate(hidden)
        out = self.activation(out)
        out = mul(out, own)
        out = self.projection(out)
        return self.norm(out)


class KindsRotary(Rotary):
    """Tables for each kind of layer, as wide as its heads."""

    def __init__(self, spec: Gemma4Spec):
        super().__init__(spec.head_dim, kinds=spec.kinds)
        self.spec = spec

    def buffers(self, build: Builder) -> list[Tensor]:
        return [t for kind in self.kinds for t in frequencies(build, self.spec.heads_of(kind)[1])]

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        return {kind: rotary_table(ids.tape, ids.shape[1], self.spec.heads_of(kind)[1], dtype) for kind in self.kinds}


class PerLayer:
    """What each layer gets of each token beside hidden states: by its id from a table, and of its embedding."""

    def __init__(self, spec: PerLayerSizes, build: Builder):
        self.shape = spec.num_hidden_layers, spec.hidden_size_per_layer_input
        width = self.shape[0] * self.shape[1]
        rows, scale = spec.vocab_size_per_layer_input, build.buffer("embed_tokens_per_layer.embed_scale", (), build.dtype)
        self.table = build.embedding("embed_tokens_per_layer", rows, width, scale)
        self.projection = build.linear("per_layer_model_projection", spec.hidden_size, width)
        self.norm = RMSNorm(build, "per_layer_projection_norm", self.shape[1])

    def by_id(self, ids: Tensor) -> Tensor:
        """[batch, tokens, layers, size] of token ids (`get_per_layer_inputs`)."""
        return reshape(self.table(ids), (*ids.shape, *self.shape))

    def joined(self, embeds: Tensor, by_id: Tensor) -> Tensor:
        """The same, with what embeddings say (`project_per_layer_inputs`)."""
        projected = mul_scalar(self.projection(embeds))
        projected = reshape(projected, (*embeds.shape[:-1], *self.shape))
        projected = self.norm(projected)
        return mul_scalar(add(projected, by_id))


class Gemma4Body(Decoder):
    """The body of the model (`Gemma4TextModel`)."""

    def __init__(self, spec: Gemma4Spec, build: Builder):
        roles, scale = spec.roles, build.buffer("embed_scale", (), build.dtype)
        super().__init__(
            spec, build, lambda kind: Gemma4Layer(spec, build, kind), roles,
            rotary=KindsRotary(spec), norm=partial(RMSNorm, build), scale=scale,
            tail=spec.tail if spec.hidden_size_per_layer_input or spec.num_kv_shared_layers else 0,
        )  # fmt: skip
        self.per_layer = PerLayer(spec, build) if spec.hidden_size_per_layer_input else None

    def forward(
        self,
        ids: Tensor,
        given: Tensor | None = None,
        prepared: dict[LayerType, Tensor | None] | None = None,
        by_id: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """As a decoder's; `by_id`: what the token ids say of what each layer gets, and `positions`, where another has them."""
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids) if given is None else given
        each = by_id
        if self.per_layer is not None:
            each = self.per_layer.by_id(ids) if each is None else each
            each = self.per_layer.joined(embeds, each)
        positions = token_positions(tape, tokens) if positions is None else positions
        masks = prepared or self.masks(self.spec, tape, batch, tokens, embeds.dtype, self.attention)
        hidden = embeds
        tables = self.rotary.tables(ids, hidden.dtype)
        states: States = {}
        for (sees, _), layer in self.layers.by_kind():
            own = None if each is None else select(each, 2)
            hidden = layer(hidden, own, *tables[sees], masks[sees], states, positions)
        return self.norm(hidden)


def _causal_lm(spec: Gemma4Spec, build: Builder) -> CausalLM:
    capped = spec.final_logit_softcapping is not None
    return (Gemma2CausalLM if capped else CausalLM)(Gemma4Body(spec, build), spec, build)


HEADS = {"causal-lm": _causal_lm}
