"""Hunyuan 4: GLM-5's latent attention to what an indexer has picked, with sinks and a gate, between several streams.

The streams are collapsed before each block and its output is spread over them; they are not mixed. All of their parameters, the
sinks, a part of the indexers and the output layer are in float32 whatever the model's type.

After transformers' modeling_hy_v4.py (5.23), which runs
attention by hand only.
"""

from __future__ import annotations

from typing import Any, Literal

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Rotary
from estimator.families.deepseek import DeepseekMoe
from estimator.families.deepseek_v4 import ClampedExperts
from estimator.families.deepseek_v32 import GlmMoeDsaSpec, HandingDecoder, IndexedAttention, Indexer, masks_made
from estimator.families.experts import AUXILIARY
from estimator.families.feed_forward import GatedMLP
from estimator.families.gpt_oss import AttentionWithSinks
from estimator.families.heads import CausalLM
from estimator.families.hyper_connections import HyperHead
from estimator.families.modules import LayerNorm, rotated, token_positions
from estimator.families.routers import DeepseekV3Router
from estimator.families.spec import Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.autocast import paused
from estimator.tape.matmul import linear, matmul
from estimator.tape.pointwise import (
    add,
    add_scalar,
    mean_last,
    mul,
    mul_scalar,
    pow_scalar,
    relu,
    rsqrt,
    sigmoid,
    to,
)  # fmt: skip
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor, unary
from estimator.tape.views import cat, contiguous, expand, reshape, split, transpose, unbind, unsqueeze


class HyV4Spec(GlmMoeDsaSpec):
    """`hc_mult`: streams of hidden states."""

    can = Abilities()
    float32_router = indexers_turn_alike = True
    held_in_float32 = ("attn_hc.", "ffn_hc.", "hc_head.")
    attentions = ("eager",)
    modelled = AUXILIARY
    held_in = {}  # its experts are held as they are trained, which PEFT follows no pattern for (`_MODEL_TO_CONVERSION_PATTERN`)

    vocab_size: Size = 120832
    tie_word_embeddings: Literal[False] = False
    max_position_embeddings: Size | None = 262144
    num_experts: Size = called("n_routed_experts", 256)
    moe_intermediate_size: Size = 768
    q_lora_rank: Size = 1536
    qk_nope_head_dim: Size = 192
    v_head_dim: Size = 256
    first_k_dense_replace: int = 1
    rope_interleave: Literal[False] = False  # type: ignore[assignment]
    index_n_heads: Size = 16
    hc_mult: Size = 4

    @property
    def indexed(self) -> list[bool]:
        """The first layer picks, and then each fourth from the second on, unless something else is said."""
        if self.indexer_types is not None:
            return super().indexed
        return [i == 0 or i % 4 == 1 for i in range(self.num_hidden_layers)]


SPECS = {"hy_v4": HyV4Spec}


class HyV4Indexer(Indexer):
    """What is not rotated stands first; keys are normalised, and heads weighed, in float32."""

    def __init__(self, spec: HyV4Spec, build: Builder):
        heads, size, name = spec.index_n_heads, spec.index_head_dim, "self_attn.indexer"
        self.spec = spec
        with build.unlearning():
            self.wq_b = build.linear(f"{name}.wq_b", spec.q_lora_rank, heads * size)
            self.wk = build.linear(f"{name}.wk", spec.hidden_size, size)
            weight, bias = (build.parameter(f"{name}.k_norm.{part}", (size,), dtypes.float32) for part in ("weight", "bias"))
            self.k_norm = LayerNorm(weight, bias)
            self.weights_proj: Any = build.linear(f"{name}.weights_proj", spec.hidden_size, heads, dtype=dtypes.float32)

    def _chosen(self, hidden: Tensor, q_latent: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        spec, (batch, tokens, _) = self.spec, hidden.shape
        parts = (spec.index_head_dim - spec.head_dim, spec.head_dim)
        q = self.wq_b(q_latent)
        q = reshape(q, (batch, tokens, spec.index_n_heads, spec.index_head_dim))
        q_pass, q_rot = split(q, parts, 3)
        k = unsqueeze(to(self.k_norm(to(self.wk(hidden), dtypes.float32)), hidden.dtype), 2)
        k_pass, k_rot = split(k, parts, 3)
        c, s = unsqueeze(cos, 2), unsqueeze(sin, 2)
        q_turned = rotated(q_rot, c, s)
        k_turned = rotated(k_rot, c, s)
        q_rot, k_rot = q_turned, k_turned
        del q_turned, k_turned, c, s
        q = cat((q_pass, q_rot), 3)
        k = reshape(cat((k_pass, k_rot), 3), (batch, tokens, -1))
        scores = matmul(to(q, dtypes.float32), unsqueeze(to(transpose(k, 1, 2), dtypes.float32), 1))
        scores = relu(scores)
        weights = mul_scalar(mul_scalar(to(self.weights_proj(to(hidden, dtypes.float32)), dtypes.float32)))
        ranked = reshape(matmul(unsqueeze(weights, 2), scores), (batch, tokens, -1))
        ranked = add(ranked, mask)
        return unary("_to_copy", topk(ranked, min(spec.index_topk, ranked.shape[-1]))[1], dtypes.int32)


class GatedIndexedAttention(IndexedAttention):
    """With sinks, and a gate of what each head gives."""

    def __init__(self, spec: HyV4Spec, build: Builder, own: bool):
        sinks = build.parameter("self_attn.sinks", (spec.num_attention_heads,), dtypes.float32)
        super().__init__(spec, build, own)
        self.gate_proj = build.linear("self_attn.gate_proj", spec.hidden_size, spec.num_attention_heads * spec.v_head_dim)
        self.attend: Any = AttentionWithSinks(sinks, spec.attention_dropout if build.training else 0.0)

    def make_indexer(self, spec: Any, build: Builder) -> Indexer:
        return HyV4Indexer(spec, build)

    def before(self, hidden: Tensor) -> Tensor:
        return reshape(self.gate_proj(hidden), (*hidden.shape[:2], -1, self.spec.v_head_dim))

    def after(self, out: Tensor, before: Tensor | None) -> Tensor:
        assert before is not None
        return mul(out, sigmoid(before))


class Moe(DeepseekMoe):
    """With clamped experts beside a shared one that is not."""

    def __init__(self, spec: HyV4Spec, build: Builder):
        self.experts, self.gate = ClampedExperts(spec, build), DeepseekV3Router(spec, build)
        self.shared_experts = GatedMLP(spec, build, "mlp.shared_experts", spec.moe_intermediate_size * spec.n_shared_experts)


def inverse_norm(x: Tensor) -> Tensor:
    """What root-mean-square normalisation multiplies by (`HYV4UnweightedRMSNorm`)."""
    return to(rsqrt(add_scalar(mean_last(pow_scalar(to(x, dtypes.float32))))), x.dtype)


class Connection:
    """Weights that collapse the streams into a block's input, and spread its output over them (`HYV4HyperConnection`)."""

    def __init__(self, spec: HyV4Spec, build: Builder, name: str):
        self.streams = spec.hc_mult
        self.fn = build.parameter(name + ".fn", (2 * spec.hc_mult, spec.hc_mult * spec.hidden_size), dtypes.float32)
        self.base = build.parameter(name + ".base", (2 * spec.hc_mult,), dtypes.float32)
        self.scale = build.parameter(name + ".scale", (2,), dtypes.float32)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What spreads, [batch, tokens, streams], and the block's input."""
        halves = self.streams, self.streams
        with paused(hidden.tape):
            flat = to(reshape(hidden, (*hidden.shape[:2], -1)), dtypes.float32)
            mixes = mul(linear(flat, to(self.fn, dtypes.float32)), inverse_norm(flat))
            pre_b, post_b = split(self.base, halves, 0)
            pre_scale, post_scale = unbind(self.scale, 0)
            pre_w, post_w = split(mixes, halves, 2)
            pre = add_scalar(sigmoid(add(mul(pre_w, pre_scale), pre_b)))
            post = add_scalar(mul_scalar(sigmoid(add(mul(post_w, post_scale), post_b))))
            out = sum_dim(mul(unsqueeze(pre, 3), hidden), 2)
        return post, to(out, hidden.dtype)


class Head(HyperHead):
    """`HYV4HyperHead`."""

    def __call__(self, hidden: Tensor) -> Tensor:
        with paused(hidden.tape):
            flat = to(reshape(hidden, (*hidden.shape[:2], -1)), dtypes.float32)
            mixes = mul(linear(flat, to(self.fn, dtypes.float32)), inverse_norm(flat))
            pre = add_scalar(sigmoid(add(mul(mixes, to(self.scale, dtypes.float32)), to(self.base, dtypes.float32))))
            out = sum_dim(mul(unsqueeze(pre, 3), hidden), 2)
        return to(out, hidden.dtype)


class Layer:
    """Both blocks between streams. It hands on what it has picked."""

    def __init__(self, spec: HyV4Spec, build: Builder, kind: tuple[bool, bool]):
        sparse, own = kind
        self.self_attn = GatedIndexedAttention(spec, build, own)
        self.mlp = Moe(spec, build) if sparse else GatedMLP(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.attn_hc, self.ffn_hc = Connection(spec, build, "attn_hc"), Connection(spec, build, "ffn_hc")

    def __call__(self, hidden: Tensor, *shared: Any) -> tuple[Tensor, Tensor]:
        cos, sin, mask, _, *handed = shared
        residual = hidden
        post, out = self.attn_hc(hidden)
        out = self.input_layernorm(out)
        out, weights, chosen = self.self_attn(out, cos, sin, mask, *handed)
        out = _spread(post, out, residual)
        residual = out
        post, out = self.ffn_hc(out)
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        out = _spread(post, out, residual)
        del weights
        return out, chosen


def _spread(post: Tensor, out: Tensor, residual: Tensor) -> Tensor:
    """A block's output on every stream, in float32."""
    own = mul(unsqueeze(to(post, dtypes.float32), 3), unsqueeze(to(out, dtypes.float32), 2))
    return to(add(own, to(residual, dtypes.float32)), residual.dtype)


class Body(HandingDecoder):
    """`HYV4Model`."""

    def __init__(self, spec: HyV4Spec, build: Builder):
        kinds = list(zip(spec.sparse(), spec.indexed, strict=True))
        super().__init__(
            spec, build, lambda kind: Layer(spec, build, kind), kinds,
            rotary=Rotary(spec.head_dim), masks=masks_made, holding=True,
        )  # fmt: skip
        self.streams, self.hc_head = spec.hc_mult, Head(spec, build)

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: dict[LayerType, Tensor | None] | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids) if given is None else given
        positions = token_positions(tape, tokens)
        masks = prepared or self.masks(self.spec, tape, batch, tokens, embeds.dtype, self.attention)
        cos, sin = self.rotary.tables(ids, embeds.dtype)[FULL]
        hidden = contiguous(expand(unsqueeze(embeds, 2), (batch, tokens, self.streams, embeds.shape[2])))
        chosen = None
        for _, layer in self.layers.by_kind():
            hidden, chosen = layer(hidden, cos, sin, masks[FULL], positions, chosen)
        return self.norm(self.hc_head(hidden))


class WideHeadLM(CausalLM):
    """With an output layer in float32."""

    def __init__(self, spec: HyV4Spec, build: Builder):
        self.body, self.loss = Body(spec, build), build.kernels.loss
        self.lm_head = build.head(spec.hidden_size, spec.vocab_size, False, dtype=dtypes.float32)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(to(hidden, self.lm_head.weight.dtype))


HEADS = {"causal-lm": WideHeadLM}
