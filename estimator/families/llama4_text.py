"""Llama 4's language model: in some layers each token passes a shared expert and few of many others.

Most layers rotate queries and keys, as complex numbers, and see chunks of the sequence; the others have no positions and see
everything. After transformers' modeling_llama4.py (5.23).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.experts import AUXILIARY
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import language_model
from estimator.families.llama import LlamaSpec
from estimator.families.llama4_moe import Llama4Moe
from estimator.families.norms import RMSNormThenWeight, normalized
from estimator.families.spec import DecoderSpec, Size
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape import dtypes
from estimator.tape.complex import as_complex, as_real, multiply_by
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, mul, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import contiguous, expand, reshape, transpose, unsqueeze

Seen = Literal["full_attention", "chunked_attention"]
CHUNKED: Seen = "chunked_attention"


class Llama4TextSpec(LlamaSpec):
    """Every `interleave_moe_layer_step`-th layer has experts, unless `moe_layers` names those that have. Every
    `no_rope_layer_interval`-th has no positions, unless `no_rope_layers` says with a 0 which."""

    can = Abilities(gguf=True, graph="llama-4", routing="llama-4")
    attentions = ("sdpa", "eager")
    implementations = ("transformers",)
    cached = False
    adds_in_place = own_products = True
    input_first = ("experts.gate_up_proj", "experts.down_proj")
    without_lora = ("router",)
    modelled = {**AUXILIARY, "router_jitter_noise": (0, None), "mlp_bias": (False,)}

    parts_in_sglang = True
    intermediate_size_mlp: Size = 16384
    num_local_experts: Size = 16
    num_experts_per_tok: Size = 1
    interleave_moe_layer_step: Size = 1
    moe_layers: tuple[int, ...] | None = None
    use_qk_norm: bool = True
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Size = 4
    attention_chunk_size: Size = 8192
    layer_types: tuple[Seen, ...] | None = None
    attn_temperature_tuning: bool = True

    @property
    def sparse(self) -> list[bool]:
        """Whether each layer has experts."""
        if self.moe_layers is not None:
            return [i in self.moe_layers for i in range(self.num_hidden_layers)]
        return [(i + 1) % self.interleave_moe_layer_step == 0 for i in range(self.num_hidden_layers)]

    @property
    def rotating(self) -> list[bool]:
        """Whether each layer has rotary positions."""
        layers = range(self.num_hidden_layers)
        return [bool(self.no_rope_layers[i] if self.no_rope_layers else (i + 1) % self.no_rope_layer_interval) for i in layers]

    @property
    def chunked(self) -> list[bool]:
        """Whether each layer sees chunks of the sequence."""
        return [kind == CHUNKED for kind in self.layer_types] if self.layer_types else self.rotating

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        full = attention(self.num_key_value_heads, self.head_dim)
        chunk = replace(full, kind="chunk", tokens=self.attention_chunk_size)
        return tuple([chunk if chunked else full for chunked in self.chunked])


SPECS = {"llama4_text": Llama4TextSpec}


class Kind(NamedTuple):
    """What a layer is."""

    rotates: bool
    chunked: bool
    sparse: bool


class Turns(Rotary):
    """Rotary positions as complex numbers, [1, tokens, size / 2]."""

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        turns = empty(ids.tape, (1, ids.shape[1], self.size // 2), dtypes.complex64, "mul")
        return dict.fromkeys((FULL, SLIDING), (turns,))


def masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """That of everything, and that of chunks, each sequence's own (masking_utils.py, `create_chunked_causal_mask`)."""
    assert isinstance(spec, Llama4TextSpec)
    full, square = causal_mask(tape, batch, tokens, dtype, implementation, None), (batch, 1, tokens, tokens)
    if implementation == "eager":
        return {FULL: full, SLIDING: empty(tape, square, dtype, "where")}
    several = tokens >= spec.attention_chunk_size
    return {FULL: full, SLIDING: empty(tape, square, dtypes.bool_, "bitwise_and") if several else None}


class SelfAttention:
    """In layers with positions queries and keys may be normalised once they are rotated; in the others queries may grow with
    their place."""

    positions = "layer"

    def __init__(self, spec: Llama4TextSpec, build: Builder, rotates: bool):
        size, bias, self.head_dim = spec.hidden_size, spec.attention_bias, spec.head_dim
        queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.rotates, self.norms, self.tuned = rotates, spec.use_qk_norm, spec.attn_temperature_tuning
        self.q_proj = build.linear("self_attn.q_proj", size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, size, bias)
        dropped = spec.attention_dropout if build.training else 0.0
        self.attend = Attention(build.attention, float32_softmax=False, dropout=dropped, cast_back=False)

    def __call__(self, hidden: Tensor, turns: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = reshape(self.q_proj(hidden), heads)
        k = reshape(self.k_proj(hidden), heads)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        held: list[Tensor] = []
        if self.rotates:
            q, k = turned(q, k, turns)
            if self.norms:
                q = normalized(q)
                k = normalized(k)
        elif self.tuned:
            q, *held = tempered(q)
        q = transpose(q, 1, 2)
        k = transpose(k, 1, 2)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.o_proj(out)
        del held
        return out, weights


def turned(q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, [batch, tokens, heads, size], rotated as complex numbers (`apply_rotary_emb`)."""
    pairs_q = as_complex(to(q, dtypes.float32))
    pairs_k = as_complex(to(k, dtypes.float32))
    turned_q = as_real(multiply_by(pairs_q, unsqueeze(turns, 2)))
    turned_k = as_real(multiply_by(pairs_k, unsqueeze(turns, 2)))
    rotated_q = to(turned_q, q.dtype)
    return rotated_q, to(turned_k, k.dtype)


def tempered(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, [batch, tokens, heads, size], times a number for each position; and the positions and numbers, which are held."""
    batch, tokens = q.shape[:2]
    positions = empty(q.tape, (tokens,), dtypes.int64, "add")
    scales = empty(q.tape, (tokens,), dtypes.float32, "_to_copy")
    for operation in ("add", "div", "floor", "log1p", "mul", "add"):
        scales = unary(operation, scales)
    scales = expand(reshape(scales, (1, tokens, 1, 1)), (batch, tokens, 1, 1))
    return to(mul(q, scales), q.dtype), positions, scales


class Layer:
    """What attention gives has a name to the layer's end, and so have the weights, or the router's scores."""

    def __init__(self, spec: Llama4TextSpec, build: Builder, kind: Kind):
        size = spec.hidden_size
        self.self_attn = SelfAttention(spec, build, kind.rotates)
        self.feed_forward: Llama4Moe | GatedMLP = (
            Llama4Moe(spec, build) if kind.sparse else GatedMLP(spec, build, "feed_forward", spec.intermediate_size_mlp)
        )
        self.input_layernorm = RMSNormThenWeight(build, "input_layernorm", size)
        self.post_attention_layernorm = RMSNormThenWeight(build, "post_attention_layernorm", size)

    def __call__(self, hidden: Tensor, turns: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        attended, beside = self.self_attn(out, turns, mask)
        out = add(residual, attended)
        residual = out
        out = self.post_attention_layernorm(out)
        if isinstance(self.feed_forward, Llama4Moe):
            out, beside = self.feed_forward(out)
        else:
            out = self.feed_forward(out)
        out = add(residual, reshape(out, residual.shape))
        del attended, beside
        return out


def llama4(spec: Llama4TextSpec, build: Builder) -> Decoder:
    """The body of the model."""
    kinds = [Kind(*kind) for kind in zip(spec.rotating, spec.chunked, spec.sparse, strict=True)]

    def norm(name: str, size: int) -> RMSNormThenWeight:
        return RMSNormThenWeight(build, name, size)

    def sees(kind: Kind) -> LayerType:
        return SLIDING if kind.chunked else FULL

    return Decoder(
        spec,
        build,
        lambda kind: Layer(spec, build, kind),
        kinds,
        rotary=Turns(spec.head_dim),
        norm=norm,
        masks=masks,
        sees=sees,
    )


HEADS = language_model(llama4)
