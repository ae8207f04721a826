"""MiniMax-Text-01 and M1: lightning attention, a state that blocks of tokens carry on, with attention in some layers; experts.

After transformers' modeling_minimax.py (5.23). Every layer's residual is what its norm gave. The blocks between those at the ends
all do the same, and share a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.contract.errors import Contradiction
from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.decoder import Decoder, Rotary
from estimator.families.each_layer import check_each_named
from estimator.families.experts import AUXILIARY, MoeSpec
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.mamba import scan_slots
from estimator.families.mixtral import MixtralMoe, MixtralSpec
from estimator.families.modules import ACTIVATIONS
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape.autograd import attach, record
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, exp, mul, mul_scalar, sigmoid
from estimator.tape.slots import Slot
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import narrow, reshape, split, transpose

Kind = Literal["full_attention", "linear_attention"]
ATTENTION: Kind = "full_attention"
LINEAR: Kind = "linear_attention"
APART = 2
"""Blocks at each end that do what others do not: nothing reads the state that the last leaves, and the first reads one that wants
no gradient."""


class MiniMaxSpec(RotarySpec, MoeSpec):
    """Every second layer attends, from the first on, unless `layer_types` says which ones do; or `attn_type_list`, in which 1 is
    attention, in published configurations."""

    can = Abilities()
    last_vllm = "0.23"
    in_sglang = "none"
    why_not_sglang = "its backend for transformers' models keeps no states"
    held_in = MixtralSpec.held_in
    modelled = {**AUXILIARY, "router_jitter_noise": (0.0, 0, None), "sliding_window": (None,)}

    max_position_embeddings: Size | None = 131072
    num_experts: Size = called("num_local_experts", 8)
    num_experts_per_tok: Size = 2
    block_size: Size = 256
    layer_types: tuple[Kind, ...] | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each layer is."""
        return self.layer_types or tuple([LINEAR if i % 2 else ATTENTION for i in range(self.num_hidden_layers)])

    @property
    def cached_per_token(self) -> int | None:
        """Keys and values in the layers of attention alone: the others keep a state of fixed size."""
        return 2 * self.kinds.count(ATTENTION) * self.num_key_value_heads * self.head_dim

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """Nothing that engines are known to size: how they keep the states of lightning attention was not read."""
        return ()

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"attn_type_list"}

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get("attn_type_list"), list | tuple):
            return given
        types = [ATTENTION if each == 1 else LINEAR for each in given["attn_type_list"]]
        return {"layer_types": types} | {name: value for name, value in given.items() if name != "attn_type_list"}

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.kinds]}


SPECS = {"minimax": MiniMaxSpec}


class LightningAttention:
    """What each token reads of the tokens of its block before it, and of a state in which the blocks before are summed."""

    def __init__(self, spec: MiniMaxSpec, build: Builder):
        heads, size, block = spec.num_attention_heads, spec.head_dim, spec.block_size
        if build.sharding.weights_dtype not in (None, build.dtype):
            raise Contradiction(
                "lightning attention multiplies by buffers that a mixed-precision policy does not cast, and fails in torch: "
                "write bf16-true or 32-true",
                "training.precision",
            )
        self.heads, self.size, self.block, self.unrolled = heads, size, block, build.unrolled
        self.act = ACTIVATIONS[spec.hidden_act]
        self.norm = build.rms_norm("self_attn.norm", heads * size)
        self.qkv_proj = build.linear("self_attn.qkv_proj", spec.hidden_size, 3 * heads * size)
        self.out_proj = build.linear("self_attn.out_proj", heads * size, spec.hidden_size)
        self.output_gate = build.linear("self_attn.output_gate", spec.hidden_size, heads * size)
        self.slope = build.buffer("self_attn.slope_rate", (heads, 1, 1), build.dtype)
        self.query_decay = build.buffer("self_attn.query_decay", (heads, block, 1), build.dtype)
        self.key_decay = build.buffer("self_attn.key_decay", (heads, block, 1), build.dtype)
        self.diagonal = build.buffer("self_attn.diagonal_decay", (1, heads, block, block), build.dtype)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        tape, (batch, tokens, _), size = hidden.tape, hidden.shape, self.size
        qkv = self.act(self.qkv_proj(hidden))
        qkv = reshape(qkv, (batch, tokens, self.heads, 3 * size))
        q, k, v = [transpose(each, 1, 2) for each in split(qkv, (size, size, size), 3)]
        state = empty(tape, (batch, self.heads, size, size), v.dtype, "zeros")
        parts: list[Tensor] = []
        layer, whole = tape.slot, tokens // self.block
        sizes = [self.block] * whole + [tokens % self.block] * (tokens % self.block > 0)
        slots = scan_slots("blocks", len(sizes), layer, self.unrolled, APART)
        left = [*sizes[:APART], *sizes[APART : len(slots) - APART], *sizes[-APART:]] if len(slots) < len(sizes) else sizes
        for slot, length in zip(slots, left, strict=True):
            tape.enter(slot)
            own_q, own_k, own_v = narrow(q, 2, length), narrow(k, 2, length), narrow(v, 2, length)
            q_decay, k_decay = narrow(self.query_decay, 1, length), narrow(self.key_decay, 1, length)
            diagonal = narrow(narrow(self.diagonal, 2, length), 3, length)
            decay = exp(mul_scalar(self.slope))
            within = matmul(own_q, transpose(own_k, 2, 3))
            read_within = matmul(mul(within, diagonal), own_v)
            read_before = matmul(mul(own_q, q_decay), state)
            part = add(read_before, read_within)
            parts.append(part)
            new = matmul(transpose(mul(own_k, k_decay), 2, 3), own_v)
            state = add(mul(state, decay), new)
        tape.enter(layer)
        return self._joined(hidden, parts, slots, tokens), state

    def _joined(self, hidden: Tensor, parts: list[Tensor], slots: list[Slot], tokens: int) -> Tensor:
        tape, (batch, _, _) = hidden.tape, hidden.shape
        out = _joined_blocks(parts, tokens)
        layer = tape.slot
        for slot in reversed(slots):
            tape.enter(slot)
            parts.pop()
        tape.enter(layer)
        out = transpose(out, 1, 2)
        out = reshape(out, (batch, tokens, -1))
        out = self.norm(out)
        out = mul(sigmoid(self.output_gate(hidden)), out)
        return self.out_proj(out)


def _joined_blocks(parts: list[Tensor], tokens: int) -> Tensor:
    """All blocks' tokens, [batch, heads, tokens, size]; one of `parts` may stand for many. The gradients are views."""
    sizes = [part.shape[2] for part in parts]
    node = record("CatBackward", parts, (), lambda g: [narrow(g, 2, size) for size in sizes])
    batch, heads, _, size = parts[0].shape
    return attach(node, empty(parts[0].tape, (batch, heads, tokens, size), parts[0].dtype, "cat"))


class MiniMaxLayer:
    """What a norm gives is the residual of the block behind it, and both are multiplied by a number."""

    def __init__(self, spec: Any, build: Builder, kind: Kind):
        self.linear = kind == LINEAR
        self.self_attn: Any = (LightningAttention if self.linear else GroupedQueryAttention)(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.mlp = MixtralMoe(spec, build)

    def __call__(self, hidden: Tensor, *shared: Any) -> Tensor:
        residual = self.input_layernorm(hidden)
        out, held = self.self_attn(residual, *(() if self.linear else shared[:-1]))
        out = add(mul_scalar(residual), mul_scalar(out))
        out = self.post_attention_layernorm(out)
        residual = out
        out = self.mlp(out)
        result = add(mul_scalar(residual), mul_scalar(out))
        del held
        return result


def minimax(spec: MiniMaxSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def sees(kind: Kind) -> LayerType | None:
        return None if kind == LINEAR else FULL

    def layer(kind: Kind) -> MiniMaxLayer:
        return MiniMaxLayer(spec, build, kind)

    return Decoder(spec, build, layer, spec.kinds, rotary=Rotary(spec.head_dim), sees=sees)


HEADS = decoder_heads(minimax)
