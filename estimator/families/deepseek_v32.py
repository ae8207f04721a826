"""DeepSeek-V3.2 and GLM-5: V3's latent attention to the keys alone that an indexer, which is not trained, has picked for a token.

GLM-5 hands what was picked on to the next layer, which may have no indexer of its own. The loss of an indexer's own training is
in no released code. After transformers' modeling_deepseek_v32.py and modeling_glm_moe_dsa.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from estimator.contract.errors import NotModelled
from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, indexer, latent
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.deepseek import DeepseekMoe
from estimator.families.each_layer import check_each_named
from estimator.families.experts import AUXILIARY
from estimator.families.feed_forward import GatedMLP
from estimator.families.glm4_moe_lite import Glm4MoeLiteSpec
from estimator.families.heads import language_model
from estimator.families.latent import LatentAttention, rotate_neighbours
from estimator.families.modules import rotated, token_positions
from estimator.families.spec import DecoderSpec, Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.autograd import no_grad
from estimator.tape.dtypes import DType
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, mul_scalar, relu, to
from estimator.tape.selection import masked_fill, topk
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import cat, reshape, split, transpose, unsqueeze


class DeepseekV32Spec(Glm4MoeLiteSpec):
    can = Abilities(gguf=True, graph="deepseek-3.2", routing="sigmoid", mlx_routers="whole")
    attentions: ClassVar[tuple[str, ...]] = ("sdpa", "eager")
    modelled = {**AUXILIARY, "rope_interleave": (True,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}

    max_position_embeddings: Size | None = 163840
    num_experts: Size = called("n_routed_experts", 256)
    num_experts_per_tok: Size = 8
    q_lora_rank: Size = 1536
    qk_nope_head_dim: Size = 128
    v_head_dim: Size = 128
    first_k_dense_replace: int = 3
    n_group: Size = 8
    topk_group: Size = 4
    rope_interleave: Literal[True] = True
    index_topk: Size = 2048
    index_head_dim: Size = 128
    index_n_heads: Size = 64

    @property
    def indexed(self) -> list[bool]:
        """Whether each layer has an indexer."""
        return [True] * self.num_hidden_layers

    @property
    def cached_per_token(self) -> int | None:
        """A latent in every layer, and a key of each indexer."""
        return (super().cached_per_token or 0) + sum(self.indexed) * self.index_head_dim

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """Of each layer a latent, and the keys of its indexer if it has one."""
        kept = latent(self.kv_lora_rank + self.head_dim, self.index_topk)
        return tuple(each for own in self.indexed for each in ((kept, indexer(self.index_head_dim)) if own else (kept,)))

    @property
    def cache_places(self) -> tuple[int, ...]:
        return tuple(place for place, own in enumerate(self.indexed) for _ in range(1 + own))

    @model_validator(mode="after")
    def _rotated_part(self) -> Self:
        if self.index_head_dim <= self.head_dim:
            raise ValueError(f"index_head_dim {self.index_head_dim} is not more than qk_rope_head_dim {self.head_dim}")
        return self

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "rope_interleave"}


class GlmMoeDsaSpec(DeepseekV32Spec):
    """`indexer_types`: which layers have no indexer, but use what the layer before them had picked."""

    can = Abilities(gguf=True, graph="deepseek-3.2", routing="sigmoid", mlx_routers="whole")

    max_position_embeddings: Size | None = 202752
    q_lora_rank: Size = 2048
    qk_nope_head_dim: Size = 192
    v_head_dim: Size = 256
    n_group: Size = 1
    topk_group: Size = 1
    index_n_heads: Size = 32
    indexer_types: tuple[Literal["full", "shared"], ...] | None = None

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"}

    @model_validator(mode="before")
    @classmethod
    def _schedule(cls, given: Any) -> Any:
        """The other ways to say `indexer_types`: a pattern of letters, or how often a layer picks anew."""
        if not isinstance(given, Mapping):
            return given
        made = {name: value for name, value in given.items() if not name.startswith(("index_topk_", "index_skip"))}
        pattern, layers = given.get("index_topk_pattern"), given.get("num_hidden_layers")
        if made.get("indexer_types") is not None or not isinstance(layers, int) or not 0 < layers <= 2**12:
            return made
        if pattern is not None:
            return made | {"indexer_types": [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]}
        every, offset = given.get("index_topk_freq") or 1, given.get("index_skip_topk_offset", 2)
        if isinstance(every, int) and isinstance(offset, int) and every > 1:
            types = ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers)]
            return made | {"indexer_types": types}
        return made

    @property
    def indexed(self) -> list[bool]:
        return super().indexed if self.indexer_types is None else [kind == "full" for kind in self.indexer_types]

    @model_validator(mode="after")
    def _first_picks(self) -> Self:
        check_each_named(self.indexed, self.num_hidden_layers, "indexer_types")
        if not self.indexed[0]:
            raise ValueError("indexer_types begins with shared: there is no layer before it")
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"indexer_types": ["full" if own else "shared" for own in self.indexed]}


SPECS = {"deepseek_v32": DeepseekV32Spec, "glm_moe_dsa": GlmMoeDsaSpec}


class Indexer:
    """Which keys each token attends to, [batch, tokens, topk]: those with the best sums of its heads' scores."""

    turns: bool = True
    """Whether queries and keys are rotated."""

    def __init__(self, spec: DeepseekV32Spec, build: Builder):
        self.spec, self.neighbours = spec, isinstance(spec, GlmMoeDsaSpec)
        with build.unlearning():
            self.make_linears(build, spec.q_lora_rank)

    def make_linears(self, build: Builder, inputs: int) -> None:
        """Its layers; `inputs`: the width of what queries are made of."""
        spec, name = self.spec, "self_attn.indexer"
        self.wq_b = build.linear(f"{name}.wq_b", inputs, spec.index_n_heads * spec.index_head_dim)
        self.wk = build.linear(f"{name}.wk", spec.hidden_size, spec.index_head_dim)
        self.k_norm = build.layer_norm(f"{name}.k_norm", spec.index_head_dim)
        self.weights_proj: Any = build.linear(f"{name}.weights_proj", spec.hidden_size, spec.index_n_heads)

    def __call__(self, hidden: Tensor, other: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """`other`: what queries are made with."""
        with no_grad(hidden.tape):
            return self._chosen(hidden, other, cos, sin, mask)

    def queries(self, hidden: Tensor, latent: Tensor) -> Tensor:
        """[batch, tokens, heads, size], of latents of queries."""
        spec, (batch, tokens, _) = self.spec, hidden.shape
        return reshape(self.wq_b(latent), (batch, tokens, spec.index_n_heads, spec.index_head_dim))

    def _chosen(self, hidden: Tensor, other: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        spec, (batch, tokens, _) = self.spec, hidden.shape
        parts = (spec.head_dim, spec.index_head_dim - spec.head_dim)
        q = self.queries(hidden, other)
        k = unsqueeze(self.k_norm(self.wk(hidden)), 2)
        if self.turns:
            q_rot, q_pass = split(q, parts, 3)
            k_rot, k_pass = split(k, parts, 3)
            q_rot, k_rot = self._rotated(q_rot, k_rot, cos, sin)
            q = cat((q_rot, q_pass), 3)
            k = cat((k_rot, k_pass), 3)
        k = reshape(k, (batch, tokens, -1))
        scores = mul_scalar(_products(to(q, dtypes.float32), to(transpose(k, 1, 2), dtypes.float32)))
        scores = relu(scores)
        weights = mul_scalar(to(self.weights_proj(hidden), dtypes.float32))
        ranked = reshape(matmul(unsqueeze(weights, 2), scores), (batch, tokens, -1))
        if mask.dtype is dtypes.bool_:
            ranked = masked_fill(ranked, unary("bitwise_not", mask))
        else:
            ranked = add(ranked, mask)
        return unary("_to_copy", topk(ranked, min(spec.index_topk, ranked.shape[-1]))[1], dtypes.int32)

    def _rotated(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        if self.neighbours:
            return rotate_neighbours(q, k, cos, sin, heads=2)
        c, s = unsqueeze(cos, 2), unsqueeze(sin, 2)
        rotated_q = rotated(q, c, s)
        rotated_k = rotated(k, c, s)
        return rotated_q, rotated_k


def _products(q: Tensor, k: Tensor) -> Tensor:
    """Of queries [batch, tokens, heads, size] with keys [batch, size, keys], copied for each token of several sequences."""
    return matmul(q, unsqueeze(k, 1))


class IndexedAttention(LatentAttention):
    """Latent attention whose mask leaves only what its indexer, or the layer before, has picked."""

    positions = "attention"

    def __init__(self, spec: DeepseekV32Spec, build: Builder, own: bool):
        super().__init__(spec, build)
        self.indexer = self.make_indexer(spec, build) if own else None

    def make_indexer(self, spec: Any, build: Builder) -> Indexer:
        return Indexer(spec, build)

    def before(self, hidden: Tensor) -> Tensor | None:
        """What is made of hidden states first, for `after`."""
        return None

    def after(self, out: Tensor, before: Tensor | None) -> Tensor:
        """What the heads give, [batch, tokens, heads, size], as the output layer gets it."""
        return out

    def __call__(self, hidden: Tensor, *shared: Any) -> Any:
        cos, sin, mask, *handed = shared
        spec, (batch, tokens, _) = self.spec, hidden.shape
        before = self.before(hidden)
        q_latent = self.q_a_layernorm(self.q_a_proj(hidden))
        q = transpose(reshape(self.q_b_proj(q_latent), (batch, tokens, -1, spec.qk_head_dim)), 1, 2)
        q_pass, q_rot = split(q, (spec.qk_nope_head_dim, spec.head_dim), 3)
        compressed = self.kv_a_proj(hidden)
        latent, k_rot = split(compressed, (spec.kv_lora_rank, spec.head_dim), 2)
        k_pass = reshape(self.kv_a_layernorm(latent), (batch, 1, tokens, spec.kv_lora_rank))
        k_rot = reshape(k_rot, (batch, 1, tokens, spec.head_dim))
        q_rot, k_rot = self.rotate(q_rot, k_rot, (cos, sin))
        queries = cat((q_pass, q_rot), 3)
        keys, values = self.expand(k_pass, k_rot)
        if self.indexer is None:
            chosen = handed[0]
        else:
            chosen = self.indexer(hidden, q_latent, cos, sin, reshape(mask, (mask.shape[0], *mask.shape[2:])))
        return self.sparse(queries, keys, values, chosen, mask, before)

    def sparse(
        self, queries: Tensor, keys: Tensor, values: Tensor, chosen: Tensor, mask: Tensor, before: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Attention to the keys that were picked; what heads give through the output layer, the weights, and what was picked."""
        dropped = unsqueeze(_unchosen(chosen, keys.shape[2]), 1)
        if mask.dtype is dtypes.bool_:
            mask = binary("bitwise_and", mask, unary("bitwise_not", dropped))
        else:
            mask = empty(mask.tape, dropped.shape, mask.dtype, "masked_fill")
        out, weights = self.attend(queries, keys, values, mask)
        out = self.after(out, before)
        out = reshape(out, (*out.shape[:2], -1))
        out = self.o_proj(out)
        return out, weights, chosen


def _unchosen(chosen: Tensor, keys: int) -> Tensor:
    """Which keys were not picked, [batch, tokens, keys]."""
    shape = (*chosen.shape[:-1], keys)
    ones = empty(chosen.tape, shape, dtypes.bool_, "new_ones")
    places = unary("_to_copy", chosen, dtypes.int64)
    out = empty(chosen.tape, shape, dtypes.bool_, "scatter")
    del ones, places
    return out


class IndexedLayer(PreNorm):
    """A layer that also gives what it has picked."""

    hands_on = False

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Any:
        cos, sin, mask, _, *handed = shared
        residual = hidden
        out = self.input_layernorm(hidden)
        out, weights, chosen = self.self_attn(out, cos, sin, mask, *handed)
        if not self.hands_on:
            del chosen
        out = self.attention_join(out, residual)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        out = self.output_join(out, residual)
        del weights
        return (out, chosen) if self.hands_on else out


class HandingLayer(IndexedLayer):
    hands_on = True


class HandingDecoder(Decoder):
    """A decoder of which each layer gets what the one before has picked."""

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: dict[LayerType, Tensor | None] | None = None) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids) if given is None else given
        positions = token_positions(tape, tokens)
        masks = prepared or self.masks(self.spec, tape, batch, tokens, embeds.dtype, self.attention)
        hidden, chosen = embeds, None
        cos, sin = self.rotary.tables(ids, hidden.dtype)[FULL]
        for _, layer in self.layers.by_kind():
            hidden, chosen = layer(hidden, cos, sin, masks[FULL], positions, chosen)
        return self.norm(hidden)


def masks_made(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """The causal mask, which is made although `sdpa` needs none: indexers read it."""
    return {FULL: causal_mask(tape, batch, tokens, dtype, implementation, 0)}


def indexed(spec: DeepseekV32Spec, build: Builder) -> Decoder:
    """The body of the model."""
    handing = isinstance(spec, GlmMoeDsaSpec)
    if handing and build.checkpointing.segment:
        raise NotModelled(
            "segments of GLM-5's layers are not modelled; use full or {every: k}", "training.activation_checkpointing"
        )

    def layer(kind: tuple[bool, bool]) -> IndexedLayer:
        sparse, own = kind
        attention = IndexedAttention(spec, build, own)
        mlp = DeepseekMoe(spec, build) if sparse else GatedMLP(spec, build)
        return (HandingLayer if handing else IndexedLayer)(spec, build, attention, mlp)

    kinds = list(zip(spec.sparse(), spec.indexed, strict=True))
    make = HandingDecoder if handing else Decoder
    return make(spec, build, layer, kinds, rotary=Rotary(spec.head_dim), masks=masks_made, holding=handing)


HEADS = language_model(indexed)
