"""DeepSeek-V4: keys of a sliding window beside compressed ones, several residual streams, the first layers' experts by token.

After transformers' modeling_deepseek_v4.py (5.23), which has eager attention alone. The layers that predict further tokens are
in no released code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from estimator.contract.errors import NotModelled
from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, compressed
from estimator.families.compressors import HeavyCompressor, Norm, SparseCompressor, rotary_buffers, rotate_last
from estimator.families.decoder import Decoder, Rotary
from estimator.families.each_layer import check_each_named
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, SharedExpertsSpec, entered
from estimator.families.gpt_oss import AttentionWithSinks
from estimator.families.heads import language_model
from estimator.families.hyper_connections import HyperConnection, HyperHead, unweighted_norm
from estimator.families.modules import ACTIVATIONS, rotary_table, token_positions
from estimator.families.spec import Size, called
from estimator.families.windows import LayerType
from estimator.tape import dtypes
from estimator.tape.matmul import bmm, linear, matmul
from estimator.tape.pointwise import add, add_scalar, clamp, div, mul, mul_scalar, neg, softplus, sqrt, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, expand, reshape, split, transpose, unsqueeze

Sees = Literal["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
SLIDING: Sees = "sliding_attention"
SPARSE: Sees = "compressed_sparse_attention"
HEAVY: Sees = "heavily_compressed_attention"
RATIOS: Mapping[Any, Sees] = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""What `compress_ratios` of published configurations mean."""


class Kind(NamedTuple):
    """A layer's: what it sees, and whether a table says which experts each token goes to."""

    sees: Sees
    hashed: bool


class DeepseekV4Spec(SharedExpertsSpec):
    """`layer_types`, or `compress_ratios` in published configurations: what each layer sees. `num_hash_layers`: how many layers
    at the start have experts by token."""

    can = Abilities()
    held_in = EXPERTS_HELD_IN
    lora_by_name = ("q_a_proj", "q_b_proj", "kv_proj", "o_b_proj", "gate_proj", "up_proj", "down_proj")
    parts_in_sglang = True
    held_in_float32 = ("attn_hc.", "ffn_hc.", "hc_head.", "position_bias")
    attentions = ("eager",)
    own_products = True
    modelled = {
        **AUXILIARY,
        "scoring_func": ("sqrtsoftplus",),
        "topk_method": ("noaux_tc", None),
        "n_shared_experts": (1,),
        "norm_topk_prob": (True,),
        "num_key_value_heads": (1,),
        "mlp_bias": (False,),
        "attention_bias": (False,),
    }
    legacy: ClassVar[frozenset[str]] = frozenset(
        {"compress_ratios", "compress_rates", "mlp_layer_types", "partial_rotary_factor"}
    )

    intermediate_size: Size = 2048
    moe_intermediate_size: Size = 2048
    head_dim: Size = 512
    max_position_embeddings: Size | None = 1048576
    num_experts: Size = called("n_routed_experts", 256)
    num_experts_per_tok: Size = 6
    q_lora_rank: Size = 1024
    qk_rope_head_dim: Size = 64
    layer_types: tuple[Sees, ...] | None = None
    compress_rate_csa: Size = 4
    compress_rate_hca: Size = 128
    num_hash_layers: Annotated[int, Field(ge=0, le=2**12)] = 3
    hc_mult: Size = 4
    hc_sinkhorn_iters: Annotated[int, Field(ge=1, le=1000)] = 20
    sliding_window: Size = 128
    o_groups: Size = 8
    o_lora_rank: Size = 1024
    index_n_heads: Size = 64
    index_head_dim: Size = 128
    index_topk: Size = 512

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each layer is."""
        layers = self.num_hidden_layers
        usual = [HEAVY if i < 2 or i % 2 else SPARSE for i in range(layers)]
        return tuple([Kind(sees, i < self.num_hash_layers) for i, sees in enumerate(self.layer_types or usual)])

    @property
    def cached_per_token(self) -> int | None:
        return None

    def _kept(self, sees: Sees) -> tuple[CacheLayer, ...]:
        """What a layer keeps: the last tokens, and compressed keys with what they are made of; of an indexer its own."""
        window = CacheLayer("window", 1, self.head_dim, tokens=self.sliding_window)
        if sees == SPARSE:
            keys, partial = compressed(self.index_head_dim, self.compress_rate_csa, self.index_topk)
            own = compressed(self.head_dim, self.compress_rate_csa, self.index_topk)
            return window, *own, replace(keys, kind="indexer", tokens=None), partial
        return (window, *compressed(self.head_dim, self.compress_rate_hca)) if sees == HEAVY else (window,)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return tuple(each for kind in self.kinds for each in self._kept(kind.sees))

    @property
    def cache_places(self) -> tuple[int, ...]:
        return tuple(at for at, kind in enumerate(self.kinds) for _ in self._kept(kind.sees))

    @property
    def served_tables(self) -> tuple[int, ...]:
        """Cosines and sines in float32, of layers with compressed keys and of those without, and the experts of each token."""
        wide = dtypes.float32.itemsize
        turned = (self.max_position_embeddings or 0) * self.qk_rope_head_dim * wide
        chosen = self.vocab_size * self.num_experts_per_tok * wide
        return (turned,) * len({kind.sees == SLIDING for kind in self.kinds}) + (chosen,) * self.num_hash_layers

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 1}

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | cls.legacy

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        """The names of published configurations, and those that transformers writes."""
        if not isinstance(given, Mapping):
            return given
        made = {name: value for name, value in given.items() if name not in cls.legacy}
        made["intermediate_size"] = made["moe_intermediate_size"] = given.get("moe_intermediate_size") or 2048
        layers = given.get("num_hidden_layers")
        ratios, rates, types = (given.get(name) for name in ("compress_ratios", "compress_rates", "mlp_layer_types"))
        if isinstance(made.get("layer_types"), list | tuple) and isinstance(layers, int):
            made["layer_types"] = made["layer_types"][:layers]
        elif isinstance(ratios, list | tuple) and isinstance(layers, int):
            if strange := [each for each in ratios if each not in RATIOS]:
                raise ValueError(f"compress_ratios has {strange[0]!r}; 0, 4 and 128 are known")
            made["layer_types"] = [RATIOS[each] for each in ratios[:layers]]
        if isinstance(rates, Mapping):
            for name, sees in (("compress_rate_csa", SPARSE), ("compress_rate_hca", HEAVY)):
                made |= {name: rates[sees]} if sees in rates else {}
        if isinstance(types, list | tuple):
            first = list(types).count("hash_moe")
            if list(types) != ["hash_moe"] * first + ["moe"] * (len(types) - first):
                raise ValueError("mlp_layer_types has hash_moe after moe, or others; only the first layers can be hash_moe")
            made["num_hash_layers"] = first
        part, size = given.get("partial_rotary_factor"), given.get("head_dim") or 512
        if isinstance(part, int | float) and "qk_rope_head_dim" not in given and isinstance(size, int):
            made["qk_rope_head_dim"] = int(size * part)
        return made

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        for name, size in (("head_dim", self.head_dim), ("index_head_dim", self.index_head_dim)):
            if size <= self.qk_rope_head_dim or self.qk_rope_head_dim % 2:
                raise ValueError(f"qk_rope_head_dim {self.qk_rope_head_dim} is odd, or no part of {name} {size}")
        if self.num_attention_heads * self.head_dim % self.o_groups:
            raise ValueError(f"{self.num_attention_heads} heads of {self.head_dim} do not divide into o_groups {self.o_groups}")
        return self

    def config(self) -> dict[str, Any]:
        given = super().config() | {"layer_types": [kind.sees for kind in self.kinds]}
        return {name: value for name, value in given.items() if name != "intermediate_size"}


SPECS = {"deepseek_v4": DeepseekV4Spec}


class GroupedOutput:
    """The first of attention's two output layers: each group of heads by a product of its own (`DeepseekV4GroupedLinear`)."""

    def __init__(self, spec: DeepseekV4Spec, build: Builder):
        name, self.groups = "self_attn.o_a_proj", spec.o_groups
        inputs = spec.num_attention_heads * spec.head_dim // spec.o_groups
        if build.adapter is not None and build.adapter.targets(name):
            raise NotModelled(
                "an adapter on o_a_proj gives each group of heads what all groups would get, and PEFT fails: name other targets, "
                f"such as [{', '.join(spec.lora_by_name)}]",
                "training.adapter.targets",
            )
        build.bypassed.append(name)
        self.weight = build.parameter(name + ".weight", (spec.o_groups * spec.o_lora_rank, inputs))

    def __call__(self, x: Tensor) -> Tensor:
        batch, tokens, groups, size = x.shape
        weight = transpose(reshape(self.weight, (groups, -1, size)), 1, 2)
        flat = transpose(reshape(x, (-1, groups, size)), 0, 1)
        out = transpose(bmm(flat, weight), 0, 1)
        return reshape(out, (batch, tokens, groups, -1))


class V4Attention:
    """All heads of queries share one of keys, which are the values, too; their rotation is undone in what they give."""

    def __init__(self, spec: DeepseekV4Spec, build: Builder, sees: Sees):
        hidden, size = spec.hidden_size, spec.head_dim
        self.spec = spec
        sinks = build.parameter("self_attn.sinks", (spec.num_attention_heads,), dtypes.float32)
        self.q_a_proj = build.linear("self_attn.q_a_proj", hidden, spec.q_lora_rank)
        self.q_a_norm = Norm(build, "self_attn.q_a_norm", spec.q_lora_rank)
        self.q_b_proj = build.linear("self_attn.q_b_proj", spec.q_lora_rank, spec.num_attention_heads * size)
        self.kv_proj = build.linear("self_attn.kv_proj", hidden, size)
        self.kv_norm = Norm(build, "self_attn.kv_norm", size)
        self.o_a_proj = GroupedOutput(spec, build)
        self.o_b_proj = build.linear("self_attn.o_b_proj", spec.o_groups * spec.o_lora_rank, hidden)
        compressors: dict[Sees, Any] = {SPARSE: SparseCompressor, HEAVY: HeavyCompressor}
        self.compressor = compressors[sees](spec, build) if sees in compressors else None
        self.attend = AttentionWithSinks(sinks, spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        spec, (batch, tokens, _) = self.spec, hidden.shape
        heads = (batch, tokens, -1, spec.head_dim)
        q_latent = self.q_a_norm(self.q_a_proj(hidden))
        q = transpose(reshape(self.q_b_proj(q_latent), heads), 1, 2)
        q = unweighted_norm(q)
        q = rotate_last(q, cos, sin)
        kv = transpose(reshape(self.kv_norm(self.kv_proj(hidden)), heads), 1, 2)
        kv = rotate_last(kv, cos, sin)
        compressed = bias = None
        if self.compressor is not None:
            compressed, bias = self.compressor(hidden, q_latent, cos, sin)
            kv = cat((kv, compressed), 2)
        seen = mask if bias is None else cat((mask, to(bias, mask.dtype)), 3)
        out, weights = self.attend(q, kv, kv, seen)
        out = transpose(rotate_last(transpose(out, 1, 2), cos, neg(sin)), 1, 2)
        grouped = reshape(out, (batch, tokens, spec.o_groups, -1))
        grouped = reshape(self.o_a_proj(grouped), (batch, tokens, -1))
        result = self.o_b_proj(grouped)
        del compressed, bias
        return result, weights


class Router:
    """Scores are square roots of softpluses; the best experts, or by a table those of a token. Their weights sum to a number."""

    def __init__(self, spec: DeepseekV4Spec, build: Builder, hashed: bool):
        self.top_k, self.hashed = spec.num_experts_per_tok, hashed
        self.weight = build.weight("mlp.gate.weight", (spec.num_experts, spec.hidden_size))
        table = ("tid2eid", (spec.vocab_size, self.top_k), dtypes.int64)
        self.held = build.buffer(*(table if hashed else ("e_score_correction_bias", (spec.num_experts,), dtypes.float32)))

    def __call__(self, hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            flat = reshape(hidden, (-1, hidden.shape[-1]))
            logits = linear(flat, self.weight())
            scores = sqrt(softplus(logits))
            if self.hashed:
                chosen = empty(ids.tape, (flat.shape[0], self.top_k), dtypes.int64, "index")
            else:
                chosen = topk(add(scores, self.held), self.top_k)[1]
            weights = gather(scores, chosen)
            weights = div(weights, add_scalar(sum_dim(weights, -1, keepdim=True)))
            return logits, mul_scalar(weights), chosen


class ClampedExperts(Experts):
    def gate(self, gate_up: Tensor) -> Tensor:
        half = gate_up.shape[-1] // 2
        gate, up = split(gate_up, (half, half), 1)
        gate = clamp(gate, lower=False)
        up = clamp(up)
        return mul(self.act(gate), up)


class ClampedMLP:
    """The experts' feed-forward layer for every token."""

    def __init__(self, spec: DeepseekV4Spec, build: Builder):
        hidden, width = spec.hidden_size, spec.moe_intermediate_size
        self.gate_proj = build.linear("mlp.shared_experts.gate_proj", hidden, width)
        self.up_proj = build.linear("mlp.shared_experts.up_proj", hidden, width)
        self.down_proj = build.linear("mlp.shared_experts.down_proj", width, hidden)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        gate = clamp(self.gate_proj(x), lower=False)
        up = clamp(self.up_proj(x))
        return self.down_proj(mul(self.act(gate), up))


class V4Moe:
    def __init__(self, spec: DeepseekV4Spec, build: Builder, hashed: bool):
        self.gate = Router(spec, build, hashed)
        self.experts = ClampedExperts(spec, build)
        self.shared_experts = ClampedMLP(spec, build)

    def __call__(self, hidden: Tensor, ids: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.gate(hidden, ids)
        routed = reshape(self.experts(flat, chosen, weights), hidden.shape)
        out = add(routed, self.shared_experts(hidden))
        del logits
        return out


class V4Layer:
    """Both blocks between streams, which are collapsed before each and spread behind it."""

    def __init__(self, spec: DeepseekV4Spec, build: Builder, kind: Kind):
        self.plain = kind.sees == SLIDING
        self.self_attn = V4Attention(spec, build, kind.sees)
        self.mlp = V4Moe(spec, build, kind.hashed)
        self.input_layernorm = Norm(build, "input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = Norm(build, "post_attention_layernorm", spec.hidden_size)
        self.attn_hc = HyperConnection(spec, build, "attn_hc")
        self.ffn_hc = HyperConnection(spec, build, "ffn_hc")

    def __call__(self, hidden: Tensor, *shared: Any) -> Tensor:
        main, compress, (mask, _, ids) = shared[:2], shared[2:4], shared[4:]
        post, comb, collapsed = self.attn_hc(hidden)
        cos, sin = main if self.plain else compress
        out, weights = self.self_attn(self.input_layernorm(collapsed), cos, sin, mask)
        streams = _spread(post, comb, out, hidden)
        post, comb, collapsed = self.ffn_hc(streams)
        fed = self.mlp(self.post_attention_layernorm(collapsed), ids)
        result = _spread(post, comb, fed, streams)
        del weights
        return result


def _spread(post: Tensor, comb: Tensor, out: Tensor, hidden: Tensor) -> Tensor:
    """A block's output on every stream, and the streams mixed."""
    own = mul(unsqueeze(to(post, hidden.dtype), 3), unsqueeze(out, 2))
    return add(own, matmul(transpose(to(comb, hidden.dtype), 2, 3), hidden))


class V4Rotary(Rotary):
    """Two tables, of pairs, for layers without and with compressed keys."""

    def buffers(self, build: Builder) -> list[Tensor]:
        return rotary_buffers(build, self.size)


class V4Decoder(Decoder):
    """A decoder of several streams, whose layers get token ids, too."""

    def __init__(self, spec: DeepseekV4Spec, build: Builder):
        def layer(kind: Kind) -> V4Layer:
            return V4Layer(spec, build, kind)

        def norm(name: str, size: int) -> Norm:
            return Norm(build, name, size)

        super().__init__(spec, build, layer, spec.kinds, rotary=V4Rotary(spec.qk_rope_head_dim), norm=norm)
        self.hc_head = HyperHead(spec, build)
        self.v4 = spec

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: dict[LayerType, Tensor | None] | None = None) -> Tensor:
        spec, tape, (batch, tokens) = self.v4, ids.tape, ids.shape
        embeds = self.embed_tokens(ids) if given is None else given
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, spec.sliding_window)
        hidden = contiguous(expand(unsqueeze(embeds, 2), (batch, tokens, spec.hc_mult, spec.hidden_size)))
        main = rotary_table(tape, tokens, spec.qk_rope_head_dim // 2, embeds.dtype)
        compress = rotary_table(tape, tokens, spec.qk_rope_head_dim // 2, embeds.dtype)
        for _, layer in self.layers.by_kind():
            hidden = layer(hidden, *main, *compress, mask, positions, ids)
        return self.norm(self.hc_head(hidden))


HEADS = language_model(V4Decoder)
