"""Gemma 4's language models: Gemma 3 with a norm of values, wide heads in layers that see everything, and experts beside its MLP.

Models with embeddings of each layer's own or with layers that share keys (E2B and E4B) are left to be counted by torch.
After transformers' modeling_gemma4.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.decoder_layers import Sandwich
from estimator.families.experts import Experts
from estimator.families.feed_forward import GatedMLP
from estimator.families.gemma import Cap, Gemma2CausalLM
from estimator.families.heads import CausalLM
from estimator.families.modules import Module, rotary_table, rotated
from estimator.families.rotary import frequencies
from estimator.families.spec import Activation, Size, called
from estimator.families.windows import FULL, LayerType, WindowedSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, add_scalar, div_, mean_last, mul, mul_, mul_scalar, pow_scalar, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import index, reshape, transpose, unsqueeze


class Gemma4Spec(WindowedSpec):
    """`attention_k_eq_v`: layers that see everything have no values of their own, and may have another number of key heads.

    The last layer sees everything, whatever its type is said to be.
    """

    can = Abilities()
    default_period = 6
    modelled = {"use_bidirectional_attention": (None, False, "vision")}

    max_position_embeddings: Size | None = 131072
    hidden_act: Activation = called("hidden_activation", "gelu_pytorch_tanh")
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    sliding_window: Size = 512
    global_head_dim: Size = 512
    num_global_key_value_heads: Size | None = None
    attention_k_eq_v: bool = False
    hidden_size_per_layer_input: Literal[0] = 0
    num_kv_shared_layers: Literal[0] = 0
    final_logit_softcapping: Cap | None = None
    enable_moe_block: bool = False
    num_experts: Size | None = None
    num_experts_per_tok: Size | None = called("top_k_experts", None)
    moe_intermediate_size: Size | None = None

    @property
    def kinds(self) -> tuple[LayerType, ...]:
        return (*super().kinds[:-1], FULL)

    @classmethod
    def beyond(cls, given: Mapping[str, Any]) -> bool:
        return bool(given.get("hidden_size_per_layer_input", 256) or given.get("num_kv_shared_layers"))

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

    @property
    def cached_per_token(self) -> int | None:
        return sum(2 * keys * size for keys, size in map(self.heads_of, self.kinds))

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        window = self.sliding_window
        return tuple([attention(*self.heads_of(kind), None if kind == FULL else window) for kind in self.kinds])

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


SPECS = {"gemma4_text": Gemma4Spec}


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


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding of [batch, tokens, heads, size]."""
    c, s = unsqueeze(cos, 2), unsqueeze(sin, 2)
    return rotated(x, c, s)


class Gemma4Attention:
    """Queries and keys are normalised and rotated before they are transposed; values are normalised without a weight."""

    def __init__(self, spec: Gemma4Spec, build: Builder, kind: LayerType):
        keys, self.head_dim = spec.heads_of(kind)
        size, queries, bias = spec.hidden_size, spec.num_attention_heads * self.head_dim, spec.attention_bias
        self.q_proj = build.linear("self_attn.q_proj", size, queries, bias)
        self.q_norm = RMSNorm(build, "self_attn.q_norm", self.head_dim)
        self.k_norm = RMSNorm(build, "self_attn.k_norm", self.head_dim)
        self.v_norm = RMSNorm(build, "self_attn.v_norm", self.head_dim, weighted=False)
        self.k_proj = build.linear("self_attn.k_proj", size, keys * self.head_dim, bias)
        self.v_proj: Module | None = None
        if kind != FULL or not spec.attention_k_eq_v:
            self.v_proj = build.linear("self_attn.v_proj", size, keys * self.head_dim, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, size, bias)
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = reshape(self.q_proj(hidden), heads)
        q = self.q_norm(q)
        q = _rotated(q, cos, sin)
        q = transpose(q, 1, 2)
        k = reshape(self.k_proj(hidden), heads)
        v = k if self.v_proj is None else reshape(self.v_proj(hidden), heads)
        k = self.k_norm(k)
        k = _rotated(k, cos, sin)
        k = transpose(k, 1, 2)
        v = self.v_norm(v)
        v = transpose(v, 1, 2)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        out = self.o_proj(out)
        return out, weights


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


class Gemma4Layer(Sandwich):
    """Gemma 3's, of which the result is multiplied by a number in place."""

    def __init__(self, spec: Gemma4Spec, build: Builder, kind: LayerType):
        attention, mlp = Gemma4Attention(spec, build, kind), GatedMLP(spec, build)
        norm = partial(RMSNorm, build, size=spec.hidden_size)
        names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
        super().__init__(attention, mlp, (norm(names[0]), norm(names[1]), norm(names[2]), norm(names[3])))
        self.layer_scalar = build.buffer("layer_scalar", (1,), build.dtype)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        out = super().__call__(hidden, *shared)
        return mul_(out, self.layer_scalar)


class MixtureLayer(Gemma4Layer):
    """One with experts, which see what the feed-forward layer beside them sees before its norm."""

    def __init__(self, spec: Gemma4Spec, build: Builder, kind: LayerType):
        super().__init__(spec, build, kind)
        self.router = Router(spec, build)
        self.experts = Experts(spec, build, "experts")
        size = spec.hidden_size
        self.after_dense = RMSNorm(build, "post_feedforward_layernorm_1", size)
        self.after_experts = RMSNorm(build, "post_feedforward_layernorm_2", size)
        self.before_experts = RMSNorm(build, "pre_feedforward_layernorm_2", size)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.before_attention(hidden)
        out, other = self.self_attn(out, *shared[:-1])
        out = self.after_attention(out)
        out = add(residual, out)
        residual = out
        out = self.before_mlp(out)
        out = self.mlp(out)
        dense = self.after_dense(out)
        flat = reshape(residual, (-1, residual.shape[-1]))
        other, weights, chosen = self.router(flat)
        sparse = self.before_experts(flat)
        sparse = self.experts(sparse, chosen, weights)
        sparse = reshape(sparse, residual.shape)
        sparse = self.after_experts(sparse)
        out = add(dense, sparse)
        out = self.after_mlp(out)
        out = add(residual, out)
        out = mul_(out, self.layer_scalar)
        del other
        return out


class KindsRotary(Rotary):
    """Tables for each kind of layer, as wide as its heads."""

    def __init__(self, spec: Gemma4Spec):
        super().__init__(spec.head_dim, kinds=spec.kinds)
        self.spec = spec

    def buffers(self, build: Builder) -> list[Tensor]:
        return [t for kind in self.kinds for t in frequencies(build, self.spec.heads_of(kind)[1])]

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        return {kind: rotary_table(ids.tape, ids.shape[1], self.spec.heads_of(kind)[1], dtype) for kind in self.kinds}


def gemma4(spec: Gemma4Spec, build: Builder) -> Decoder:
    """The body of the model."""
    make = MixtureLayer if spec.enable_moe_block else Gemma4Layer
    scale = build.buffer("embed_scale", (), build.dtype)
    return Decoder(
        spec, build, lambda kind: make(spec, build, kind), spec.kinds,
        rotary=KindsRotary(spec), norm=partial(RMSNorm, build), scale=scale,
    )  # fmt: skip


def _causal_lm(spec: Gemma4Spec, build: Builder) -> CausalLM:
    capped = spec.final_logit_softcapping is not None
    return (Gemma2CausalLM if capped else CausalLM)(gemma4(spec, build), spec, build)


HEADS = {"causal-lm": _causal_lm}
