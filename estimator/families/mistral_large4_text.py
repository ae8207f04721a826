"""Mistral Large 4's language model: GLM-5's sparse latent attention without a latent of queries, which are scaled by position.

Some layers rotate nothing, and some take the latents of an earlier one. It is a part of a model that sees: transformers has no
class of it alone. After transformers' modeling_mistral_large4.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import model_validator

from estimator.contract.errors import NotModelled
from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.decoder import After, Decoder, Rotary
from estimator.families.deepseek import DeepseekMoe
from estimator.families.deepseek_v32 import GlmMoeDsaSpec, HandingLayer, IndexedAttention, Indexer, masks_made
from estimator.families.experts import AUXILIARY
from estimator.families.feed_forward import GatedMLP
from estimator.families.gemma import Gemma2CausalLM
from estimator.families.latent import rotate_neighbours
from estimator.families.modules import token_positions
from estimator.families.rotary import frequencies
from estimator.families.routers import DeepseekRouter, SoftmaxGroupRouter
from estimator.families.spec import Size, called
from estimator.families.windows import FULL, LayerType
from estimator.tape import dtypes
from estimator.tape.pointwise import add, mul, sub, to
from estimator.tape.tensor import Tensor, unary
from estimator.tape.views import cat, every_second, narrow, reshape, split, transpose, unsqueeze


class Kind(NamedTuple):
    """What a layer does: whether it has experts, and an indexer; whether it rotates; whose latents it attends to.

    `ends`: whether no later layer takes the latents that it takes.
    """

    sparse: bool
    own: bool
    turns: bool
    shares: Literal["none", "store", "reuse"]
    ends: bool


class MistralLarge4TextSpec(GlmMoeDsaSpec):
    """`no_rope_layers` has a 0 for layers that rotate nothing; `kv_source_layers` the layer whose latents each attends to."""

    can = Abilities()
    runs = False
    held_in = {}
    modelled = AUXILIARY

    max_position_embeddings: Size | None = 1048576
    num_experts: Size = called("n_routed_experts", 128)
    num_experts_per_tok: Size = 4
    q_lora_rank: None = None  # type: ignore[assignment]
    qk_nope_head_dim: Size = 64
    v_head_dim: Size = 128
    first_k_dense_replace: int = 1
    no_rope_layers: tuple[Literal[0, 1], ...] | None = None
    kv_source_layers: tuple[int, ...] | None = None
    final_logit_softcapping: float = 30.0

    @property
    def refusal(self) -> str:
        return (
            "transformers has no class of mistral_large4's language model alone: give the whole model, which trains on texts, too"
        )

    @property
    def cached_per_token(self) -> int | None:
        """What engines keep of latents that layers share is not known."""
        return None

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return ()

    @property
    def cache_places(self) -> tuple[int, ...]:
        return ()

    @property
    def turning(self) -> list[bool]:
        """Whether each layer rotates queries and keys: unasked three of four do."""
        if self.no_rope_layers is not None:
            return [turns == 1 for turns in self.no_rope_layers][: self.num_hidden_layers]
        return [(i + 1) % 4 != 0 for i in range(self.num_hidden_layers)]

    @property
    def sources(self) -> tuple[int, ...]:
        """The layer whose latents each attends to: unasked its own."""
        return (self.kv_source_layers or tuple(range(self.num_hidden_layers)))[: self.num_hidden_layers]

    @property
    def roles(self) -> list[Kind]:
        """What each layer does."""
        turning, sources, found = self.turning, self.sources, []
        for i, (sparse, own) in enumerate(zip(self.sparse(), self.indexed, strict=True)):
            shares: Literal["none", "store", "reuse"] = (
                "reuse" if sources[i] != i else "store" if i in sources[i + 1 :] else "none"
            )
            ends = shares == "reuse" and sources[i] not in sources[i + 1 :]
            found.append(Kind(sparse, own, turning[i], shares, ends))
        return found

    @model_validator(mode="before")
    @classmethod
    def _interval(cls, given: Any) -> Any:
        """The other way to say `no_rope_layers`: every so many layers one that rotates nothing."""
        if not isinstance(given, Mapping) or "no_rope_layer_interval" not in given:
            return given
        every, layers = given["no_rope_layer_interval"], given.get("num_hidden_layers")
        made = {name: value for name, value in given.items() if name != "no_rope_layer_interval"}
        if not (isinstance(every, int) and isinstance(layers, int) and every > 0 and 0 < layers <= 2**12):
            raise ValueError(f"no_rope_layer_interval {every!r} is not a number of layers")
        unsaid = made.get("no_rope_layers") is None
        return made | {"no_rope_layers": [int((i + 1) % every != 0) for i in range(layers)]} if unsaid else made

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"no_rope_layer_interval"}

    @model_validator(mode="after")
    def _each_source(self) -> Self:
        turning, sources = self.turning, self.sources
        if not len(turning) == len(sources) == self.num_hidden_layers:
            raise ValueError(f"no_rope_layers and kv_source_layers name fewer layers than the {self.num_hidden_layers}")
        for layer, source in enumerate(sources):
            if not 0 <= source <= layer or sources[source] != source:
                raise ValueError(f"kv_source_layers: layer {layer} takes of layer {source}, which is no earlier one with its own")
            between = [
                i for i in range(source, layer) if sources[i] == i and i in sources[i + 1 :] and turning[i] == turning[layer]
            ]
            if source != layer and between[-1:] != [source]:
                raise ValueError(f"kv_source_layers: layer {layer} gets the latents of the last layer like it, not of {source}")
        return self

    def config(self) -> dict[str, Any]:
        left_out = ("q_lora_rank", "norm_topk_prob", "mlp_bias")
        own = {name: value for name, value in super().config().items() if name not in left_out}
        return own | {"no_rope_layers": [int(turns) for turns in self.turning], "kv_source_layers": [*self.sources]}


SPECS = {"mistral_large4_text": MistralLarge4TextSpec}
States = dict[bool, tuple[Tensor, Tensor]]
"""Latents and rotated keys that layers take of earlier ones, by whether they rotate (`KVSharingDict`)."""


class Router(SoftmaxGroupRouter):
    """In float32, and its weight too (`_keep_in_fp32_modules_strict`)."""

    __call__ = DeepseekRouter.__call__

    def __init__(self, spec: Any, build: Builder, name: str = "mlp.gate"):
        self.spec = spec
        self.weight = build.weight(name + ".weight", (spec.num_experts, spec.hidden_size), dtype=dtypes.float32)


class Scaling:
    """Queries times a number for each head that grows with the logarithm of the position (`MistralLarge4TextSoftmaxScaling`).

    `dim`: which dimension of queries the heads are.
    """

    def __init__(self, name: str, heads: int, dim: int, build: Builder):
        self.dim = dim
        self.scale = build.parameter(f"{name}.softmax_scaling.scale", (heads,))
        self.bias = build.parameter(f"{name}.softmax_scaling.bias", (heads,))

    def __call__(self, queries: Tensor, positions: Tensor) -> Tensor:
        logs = unary("log", unary("_to_copy", unary("add", positions), dtypes.float32))
        logs, scale, bias = self._cast(logs, queries.dtype)
        rows = 3 - self.dim
        scale, bias = (unsqueeze(unsqueeze(t, 0), rows) for t in (scale, bias))
        scale = add(mul(scale, unsqueeze(logs, self.dim)), bias)
        return mul(queries, unsqueeze(scale, 3))

    def _cast(self, logs: Tensor, dtype: dtypes.DType) -> tuple[Tensor, ...]:
        return to(logs, dtype), to(self.scale, dtype), to(self.bias, dtype)


class LargeIndexer(Indexer):
    """One whose queries are made of hidden states, through a norm, and scaled."""

    def __init__(self, spec: MistralLarge4TextSpec, build: Builder, turns: bool):
        self.spec, self.neighbours, self.turns = spec, True, turns
        with build.unlearning():
            self.make_linears(build, spec.hidden_size)
            self.q_input_norm = build.layer_norm("self_attn.indexer.q_input_norm", spec.hidden_size)
            self.scaling = Scaling("self_attn.indexer", spec.index_n_heads, 2, build)

    def queries(self, hidden: Tensor, positions: Tensor) -> Tensor:
        out = super().queries(hidden, self.q_input_norm(hidden))
        return self.scaling(out, positions)


class LargeAttention(IndexedAttention):
    """A layer that rotates nothing has that part of a head with the other."""

    positions = "core"

    def __init__(self, spec: MistralLarge4TextSpec, build: Builder, kind: Kind):
        hidden, heads, rank, name = spec.hidden_size, spec.num_attention_heads, spec.kv_lora_rank, "self_attn"
        whole = {"head_dim": 0, "qk_nope_head_dim": spec.qk_head_dim}
        self.kind, self.spec = kind, spec if kind.turns else spec.model_copy(update=whole)
        nope, turned = self.spec.qk_nope_head_dim, self.spec.head_dim
        if kind.shares != "reuse":
            self.kv_a_proj = build.linear(f"{name}.kv_a_proj_with_mqa", hidden, rank + turned, spec.attention_bias)
            self.kv_a_layernorm = build.rms_norm(f"{name}.kv_a_layernorm", rank)
        self.kv_b_proj = build.linear(f"{name}.kv_b_proj", rank, heads * (nope + spec.v_head_dim))
        self.o_proj = build.linear(f"{name}.o_proj", heads * spec.v_head_dim, hidden, spec.attention_bias)
        self.indexer = LargeIndexer(spec, build, kind.turns) if kind.own else None
        self.q_proj = build.linear(f"{name}.q_proj", hidden, heads * spec.qk_head_dim)
        self.scaling = Scaling(name, heads, 1, build)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, *shared: Any) -> Any:
        cos, sin, mask, positions, states, handed = shared
        spec, (batch, tokens, _) = self.spec, hidden.shape
        q = transpose(reshape(self.q_proj(hidden), (batch, tokens, -1, spec.qk_head_dim)), 1, 2)
        q_pass, q_rot = split(q, (spec.qk_nope_head_dim, spec.head_dim), 3)
        if self.kind.shares == "reuse":
            k_pass, k_rot = states[self.kind.turns]
            q_rot = _turned(q_rot, cos, sin) if self.kind.turns else q_rot
        else:
            compressed = self.kv_a_proj(hidden)
            latent, k_rot = split(compressed, (spec.kv_lora_rank, spec.head_dim), 2)
            k_pass = reshape(self.kv_a_layernorm(latent), (batch, 1, tokens, spec.kv_lora_rank))
            k_rot = unsqueeze(k_rot, 1)  # a view, also of no elements: it holds what it is a part of
            if self.kind.turns:
                q_rot, k_rot = rotate_neighbours(q_rot, k_rot, cos, sin)
        if self.kind.shares == "store":
            states[self.kind.turns] = k_pass, k_rot
        queries = cat((q_pass, q_rot), 3)
        queries = self.scaling(queries, positions)
        keys, values = self.expand(k_pass, k_rot)
        chosen = handed
        if self.indexer is not None:
            chosen = self.indexer(hidden, positions, cos, sin, reshape(mask, (mask.shape[0], *mask.shape[2:])))
        return self.sparse(queries, keys, values, chosen, mask)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours rotated, which come out as halves."""
    c, s = (unsqueeze(narrow(t, 2, t.shape[2] // 2), 1) for t in (cos, sin))
    first, second = every_second(x), every_second(x)
    return cat((sub(mul(first, c), mul(second, s)), add(mul(second, c), mul(first, s))), 3)


class LearnedRotary(Rotary):
    """With a number for each frequency, which is learned before and not trained here."""

    def buffers(self, build: Builder) -> list[Tensor]:
        return frequencies(build, self.size, ("inv_freq", "original_inv_freq", "alpha"))


class LargeDecoder(Decoder):
    """Each layer gets what the one before has picked, and the latents that layers share."""

    def decode(
        self,
        ids: Tensor,
        given: Tensor | None = None,
        prepared: dict[LayerType, Tensor | None] | None = None,
        positions: Tensor | None = None,
        after: After | None = None,
    ) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids) if given is None else given
        positions = token_positions(tape, tokens) if positions is None else positions
        masks = prepared or self.masks(self.spec, tape, batch, tokens, embeds.dtype, self.attention)
        states: States = {}
        hidden, chosen = embeds, None
        cos, sin = self.rotary.tables(ids, hidden.dtype)[FULL]
        for _, layer in self.layers.by_kind():
            hidden, chosen = layer(hidden, cos, sin, masks[FULL], None, positions, states, chosen)
        return self.norm(hidden)


def _causal_lm(spec: MistralLarge4TextSpec, build: Builder) -> Gemma2CausalLM:
    if build.checkpointing.segment:
        raise NotModelled(
            "segments of Mistral Large 4's layers are not modelled; use full or {every: k}", "training.activation_checkpointing"
        )

    def layer(kind: Kind) -> HandingLayer:
        attention = LargeAttention(spec, build, kind)
        mlp = DeepseekMoe(spec, build, Router) if kind.sparse else GatedMLP(spec, build)
        return HandingLayer(spec, build, attention, mlp)

    rotary = LearnedRotary(spec.head_dim)
    body = LargeDecoder(spec, build, layer, spec.roles, rotary=rotary, masks=masks_made, holding=True)
    return Gemma2CausalLM(body, spec, build)


HEADS = {"causal-lm": _causal_lm}
