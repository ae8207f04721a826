"""Gemma 4's language models: Gemma 3 with a norm of values, wide heads in layers that see everything, and experts beside its MLP.

The small ones (E2B and E4B) have embeddings for each layer, and last layers that take keys and values of earlier ones.
After transformers' modeling_gemma4.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.experts import Experts
from estimator.families.feed_forward import GatedMLP
from estimator.families.gemma import Gemma2CausalLM
from estimator.families.gemma4_per_layer import Beside, PerLayer, RMSNorm
from estimator.families.gemma4_spec import Gemma4Spec, Gemma4UnifiedTextSpec, Kind, SharingSpec
from estimator.families.heads import CausalLM
from estimator.families.modules import Module, rotary_table, rotated, token_positions
from estimator.families.rotary import frequencies
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, div_, mul, mul_, mul_scalar, softmax
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import index, reshape, select, transpose, unsqueeze

Keys = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(hidden states, cosines, sines) -> a layer's own keys and values."""
States = dict[LayerType, tuple[Tensor, Tensor]]
"""Keys and values that layers take of earlier ones, by what both see (`KVSharingDict`)."""
SPECS = {"gemma4_text": Gemma4Spec, "gemma4_unified_text": Gemma4UnifiedTextSpec}


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


class KindsRotary(Rotary):
    """Tables for each kind of layer, as wide as its heads."""

    def __init__(self, spec: Gemma4Spec):
        super().__init__(spec.head_dim, kinds=spec.kinds)
        self.spec = spec

    def buffers(self, build: Builder) -> list[Tensor]:
        return [t for kind in self.kinds for t in frequencies(build, self.spec.heads_of(kind)[1])]

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        return {kind: rotary_table(ids.tape, ids.shape[1], self.spec.heads_of(kind)[1], dtype) for kind in self.kinds}


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
