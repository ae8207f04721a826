"""MiniMax-M3's language model: attention to the blocks of keys alone that an indexer has picked, for each group of heads.

What it has picked becomes a mask of every head. No gradient reaches an indexer, whose operations autograd records all the same.
After transformers' modeling_minimax_m3_vl.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from pydantic import model_validator

from estimator.families import laguna
from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import AUXILIARY, Experts, MoeSpec
from estimator.families.gemma import RMSNorm
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.minimax_m2 import Router
from estimator.families.modules import rotate_part
from estimator.families.rotary import PartialRotarySpec
from estimator.families.spec import Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add_scalar, clamp, mul, mul_scalar, sigmoid, to
from estimator.tape.selection import amax_last, masked_fill, topk
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import narrow, pad_last, reshape, split, transpose

SPARSE = "minimax_m3_sparse"
NAMES = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
"""What a published config.json says in `sparse_attention_config`, under the names of transformers."""


class Kind(NamedTuple):
    """A layer's: whether its attention has an indexer, and whether it has experts."""

    indexed: bool
    sparse: bool


class MiniMaxM3Spec(PartialRotarySpec, MoeSpec):
    """`dense_intermediate_size` and `shared_intermediate_size`: of feed-forward layers without experts, and beside them."""

    can = Abilities()
    float32_router = True
    attentions = ("sdpa", "eager")
    modelled = {**AUXILIARY, "router_jitter_noise": (0.0, 0, None)}

    max_position_embeddings: Size | None = 524288
    num_experts: Size = called("num_local_experts", 128)
    num_experts_per_tok: Size = 4
    dense_intermediate_size: Size = 12288
    shared_intermediate_size: Size = 3072
    mlp_layer_types: tuple[Literal["dense", "sparse"], ...] | None = None
    layer_types: tuple[Literal["full_attention", "minimax_m3_sparse"], ...] | None = None
    index_n_heads: Size = 4
    index_head_dim: Size = 128
    index_block_size: Size = 128
    index_topk_blocks: Size = 16
    index_local_blocks: Size = 1

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 4, "head_dim": 128}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"sparse_attention_config", "moe_layer_freq"}

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        """A published config.json says by numbers which layers are sparse."""
        if not isinstance(given, Mapping):
            return given
        made = {name: value for name, value in given.items() if name not in ("sparse_attention_config", "moe_layer_freq")}
        said, frequencies = given.get("sparse_attention_config") or {}, given.get("moe_layer_freq")
        if isinstance(said, Mapping):
            made |= {ours: said[theirs] for theirs, ours in NAMES.items() if theirs in said}
            if made.get("layer_types") is None and isinstance(said.get("sparse_attention_freq"), list | tuple):
                made["layer_types"] = [SPARSE if each else "full_attention" for each in said["sparse_attention_freq"]]
        if made.get("mlp_layer_types") is None and isinstance(frequencies, list | tuple):
            made["mlp_layer_types"] = ["sparse" if each else "dense" for each in frequencies]
        return made

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of each layer; unless something else is said, all look at everything and have experts."""
        layers = self.num_hidden_layers
        seen, fed = self.layer_types or ("full_attention",) * layers, self.mlp_layer_types or ("sparse",) * layers
        return tuple([Kind(sees == SPARSE, has == "sparse") for sees, has in zip(seen, fed, strict=True)])

    def sparse(self) -> list[bool]:
        return [kind.sparse for kind in self.kinds]

    @property
    def cached_per_token(self) -> int | None:
        return None

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """Keys and values of all layers; those with an indexer look at the blocks that it picks by keys in 16 bits (vllm/models/
        minimax_m3/common/indexer.py, `MiniMaxM3IndexerCache`; sglang/srt/mem_cache/memory_pool.py, `MiniMaxSparseKVPool`)."""
        whole = attention(self.num_key_value_heads, self.head_dim)
        chosen = replace(whole, tokens=self.index_topk_blocks * self.index_block_size)
        keys = CacheLayer("indexer", 1, self.index_head_dim, scaled=False)
        return tuple(each for kind in self.kinds for each in ((chosen, keys) if kind.indexed else (whole,)))

    @property
    def cache_places(self) -> tuple[int, ...]:
        return tuple(at for at, kind in enumerate(self.kinds) for _ in range(2 if kind.indexed else 1))

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        for name in ("layer_types", "mlp_layer_types"):
            types = getattr(self, name)
            if types is not None and len(types) != self.num_hidden_layers:
                raise ValueError(f"{name} names {len(types)} layers, num_hidden_layers is {self.num_hidden_layers}")
        if self.num_attention_heads % self.index_n_heads:
            raise ValueError(f"index_n_heads {self.index_n_heads} does not divide num_attention_heads")
        if self.index_head_dim < self.rotary_size:
            raise ValueError(
                f"index_head_dim {self.index_head_dim} is less than the {self.rotary_size} elements that are rotated"
            )
        return self

    def config(self) -> dict[str, Any]:
        types = {
            "layer_types": [SPARSE if kind.indexed else "full_attention" for kind in self.kinds],
            "mlp_layer_types": ["sparse" if kind.sparse else "dense" for kind in self.kinds],
        }
        return super().config() | types


SPECS = {"minimax_m3_vl_text": MiniMaxM3Spec}


class Indexer:
    """Which blocks of keys each token attends to, [batch, heads, tokens, blocks], and the mask that this is."""

    def __init__(self, spec: MiniMaxM3Spec, build: Builder):
        heads, size, name = spec.index_n_heads, spec.index_head_dim, "self_attn.indexer"
        self.spec = spec
        with build.unlearning():
            self.q_proj = build.linear(f"{name}.q_proj", spec.hidden_size, heads * size)
            self.k_proj = build.linear(f"{name}.k_proj", spec.hidden_size, size)
            self.q_norm, self.k_norm = (RMSNorm(build, f"{name}.{each}_norm", size) for each in "qk")

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        spec, tape, (batch, tokens, _) = self.spec, hidden.tape, hidden.shape
        q = reshape(self.q_proj(hidden), (batch, tokens, -1, spec.index_head_dim))
        q = transpose(self.q_norm(q), 1, 2)
        k = reshape(self.k_proj(hidden), (batch, tokens, 1, spec.index_head_dim))
        k = transpose(self.k_norm(k), 1, 2)
        q, k = rotate_part(q, k, cos, sin)
        scores = matmul(to(q, dtypes.float32), transpose(to(k, dtypes.float32), 2, 3))
        places = empty(tape, (tokens,), dtypes.int64, "arange")
        future = empty(tape, (batch, 1, tokens, tokens), dtypes.bool_, "gt")
        scores = masked_fill(scores, future)
        scores = pad_last(scores, spec.index_block_size)
        scores = reshape(scores, (batch, spec.index_n_heads, tokens, -1, spec.index_block_size))
        blocks = amax_last(scores)
        own = empty(tape, (batch, tokens), dtypes.int64, "floor_divide")
        local = empty(tape, (spec.index_local_blocks,), dtypes.int64, "arange")
        near = empty(tape, (batch, tokens, spec.index_local_blocks), dtypes.int64, "sub")
        near = unary("clamp", near)
        best, chosen = topk(blocks, min(spec.index_topk_blocks, blocks.shape[-1]))
        none = unary("eq", best, dtypes.bool_)
        result = masked_fill(chosen, none)
        del places, own, local, near
        return result

    def mask(self, chosen: Tensor, mask: Tensor | None, heads: int, dtype: dtypes.DType) -> Tensor:
        """[batch, heads, tokens, keys] of numbers that are added (`build_block_mask`)."""
        spec, tape, (batch, own, tokens, _) = self.spec, chosen.tape, chosen.shape
        size = spec.index_block_size
        count = -(-tokens // size)
        safe = masked_fill(chosen, unary("lt", chosen, dtypes.bool_))
        bias = empty(tape, (batch, own, tokens, count + 1), dtype, "new_full")
        bias = narrow(bias, 3, count)
        kept = empty(tape, (batch, own, tokens, count), dtypes.bool_, "eq")
        spread = empty(tape, (batch, own, tokens, count * size), dtypes.bool_, "repeat_interleave")
        del kept
        square = (batch, heads, tokens, tokens)
        each = empty(tape, square, dtypes.bool_, "repeat_interleave")
        del spread
        if mask is None:
            _places = empty(tape, (tokens,), dtypes.int64, "arange")
            seen = empty(tape, (batch, 1, tokens, tokens), dtypes.bool_, "gt")
            keep = binary("bitwise_and", each, unary("bitwise_not", seen))
        else:
            seen = unary("eq", mask, dtypes.bool_)
            keep = binary("bitwise_and", each, seen)
        zeros = empty(tape, square, dtype, "zeros")
        dropped = unary("bitwise_not", keep)
        result = empty(tape, square, dtype, "masked_fill")
        del zeros, dropped, safe, bias
        return result


class M3Attention(GroupedQueryAttention):
    """Queries and keys are normalised by head; an indexer may make the mask."""

    def __init__(self, spec: MiniMaxM3Spec, build: Builder, indexed: bool):
        def norm(which: str, heads: int) -> RMSNorm:
            return RMSNorm(build, f"self_attn.{which}_norm", spec.head_dim)

        super().__init__(spec, build, norm=norm, rotate=rotate_part)
        self.indexer = Indexer(spec, build) if indexed else None

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.indexer is None:
            return super().__call__(hidden, cos, sin, mask)
        batch, tokens, _ = hidden.shape
        q, k, v = self.project(self, hidden, (batch, tokens, -1, self.head_dim))
        q, k = self.rotate(q, k, cos, sin)
        chosen = self.indexer(hidden, cos, sin)
        mask = self.indexer.mask(chosen, mask, q.shape[1], q.dtype)
        out, weights = self.attend(q, k, v, mask, unread=chosen)
        out = reshape(out, (batch, tokens, -1))
        return self.o_proj(out), weights


def clamped(gate_up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of clamped halves: up, gate * sigmoid(gate * number), and the gate, which modules hold."""
    half = gate_up.shape[-1] // 2
    gate, up = split(gate_up, (half, half), len(gate_up.shape) - 1)
    gate = clamp(gate, lower=False)
    up = clamp(up)
    return up, mul(gate, sigmoid(mul_scalar(gate))), gate


class MLP:
    """`MiniMaxM3VLDenseMLP`."""

    def __init__(self, spec: MiniMaxM3Spec, build: Builder, name: str, width: int):
        self.gate_up_proj = build.linear(f"{name}.gate_up_proj", spec.hidden_size, 2 * width)
        self.down_proj = build.linear(f"{name}.down_proj", width, spec.hidden_size)

    def __call__(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up_proj(x)
        up, glu, _gate = clamped(gate_up)
        return self.down_proj(mul(add_scalar(up), glu))


class M3Experts(Experts):
    def gate(self, gate_up: Tensor) -> Tensor:
        up, glu, _gate = clamped(gate_up)
        return mul(add_scalar(up), glu)


class Moe(laguna.Moe):
    """Routed experts, and a feed-forward layer beside them, which runs first."""

    def __init__(self, spec: MiniMaxM3Spec, build: Builder):
        self.gate: Any = Router(spec, build)  # type: ignore[arg-type]
        self.experts = M3Experts(spec, build)
        self.shared_experts = MLP(spec, build, "mlp.shared_experts", spec.shared_intermediate_size)


def minimax_m3(spec: MiniMaxM3Spec, build: Builder) -> Decoder:
    """The body of the model."""
    norm = partial(RMSNorm, build)

    def layer(kind: Kind) -> PreNorm:
        attention = M3Attention(spec, build, kind.indexed)
        mlp = Moe(spec, build) if kind.sparse else MLP(spec, build, "mlp", spec.dense_intermediate_size)
        return PreNorm(spec, build, attention, mlp, norm)

    return Decoder(spec, build, layer, spec.kinds, rotary=Rotary(spec.rotary_size), norm=norm, sees=lambda kind: "full_attention")


HEADS = language_model(minimax_m3)
