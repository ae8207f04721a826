"""LongCat-Flash: two blocks of latent attention and of feed-forward in each layer, beside experts of which some do nothing.

After transformers' modeling_longcat_flash.py (5.23), which calls its experts one after the other. How many tokens each gets is
data; here each gets the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.contract.errors import InvalidJob
from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, latent
from estimator.families.decoder import Decoder, Rotary
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import CausalLM, Head
from estimator.families.latent import LatentAttention, rotate_neighbours
from estimator.families.latent_spec import LatentSpec
from estimator.families.modules import ACTIVATIONS
from estimator.families.spec import Size, called
from estimator.families.stacked_loop import Group, StackedLoop
from estimator.tape import dtypes
from estimator.tape.autograd import no_grad
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, mul, mul_scalar, softmax, to
from estimator.tape.selection import gather, index_add_, topk
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, index, reshape, select, split, transpose, unsqueeze

ROTATED = 64
"""transformers' `head_dim`, unless it is given."""
BOTH = 0, 1
"""The two blocks of a layer."""


class LongcatFlashSpec(LatentSpec):
    """`num_hidden_layers` is its `num_layers`: transformers counts each of them twice."""

    can = Abilities()
    modelled = {**AUXILIARY, "router_bias": (False,), "zero_expert_type": ("identity",)}
    lora_by_name = (
        *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    held_in = {name: held for name, held in EXPERTS_HELD_IN.items() if name != "gate"}

    num_hidden_layers: Size = called("num_layers", 28)
    max_position_embeddings: Size | None = 131072
    intermediate_size: Size = called("ffn_hidden_size", 12288)
    moe_intermediate_size: Size = called("expert_ffn_hidden_size", 2048)
    num_experts: Size = called("n_routed_experts", 512)
    num_experts_per_tok: Size = called("moe_topk", 12)
    zero_expert_num: int = 256
    q_lora_rank: Size = 1536
    attention_bias: bool = False
    mla_scale_q_lora: Literal[True] = True
    mla_scale_kv_lora: Literal[True] = True

    @property
    def all_experts(self) -> int:
        """Those that a router chooses among."""
        return self.num_experts + self.zero_expert_num

    @property
    def expert_size(self) -> int:
        """Width of one expert."""
        return self.moe_intermediate_size

    @property
    def idle_experts(self) -> int:
        return self.zero_expert_num

    @property
    def cached_per_token(self) -> int | None:
        return 2 * self.num_hidden_layers * (self.kv_lora_rank + self.head_dim)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return (latent(self.kv_lora_rank + self.head_dim),) * (2 * self.num_hidden_layers)

    @property
    def cache_places(self) -> tuple[int, ...]:
        return tuple([place for place in range(self.num_hidden_layers) for _ in BOTH])

    @model_validator(mode="before")
    @classmethod
    def _as_transformers_has_it(cls, given: Any) -> Any:
        """transformers' number of layers is that of its attention blocks, and positions are made for `head_dim` numbers, whatever
        part of a head is rotated."""
        if not isinstance(given, Mapping):
            return given
        said = dict(given)
        if "qk_rope_head_dim" in said and said["qk_rope_head_dim"] != (made := said.pop("head_dim", ROTATED)):
            raise ValueError(
                f"head_dim {made} is not qk_rope_head_dim {said['qk_rope_head_dim']}: transformers makes positions for {made} "
                "numbers, and fails to rotate others; write head_dim, too"
            )
        layers = said.get("num_layers")
        if isinstance(layers, int) and said.get("num_hidden_layers") == 2 * layers:
            said.pop("num_hidden_layers")
        return said

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.num_experts_per_tok > self.all_experts:
            raise ValueError(f"moe_topk {self.num_experts_per_tok} is more than the {self.all_experts} experts")
        return self

    def config(self) -> dict[str, Any]:
        own = super().config() | {"head_dim": self.head_dim}
        return {name: value for name, value in own.items() if not name.startswith("mla_scale")}


SPECS = {"longcat_flash": LongcatFlashSpec}


class Attention(LatentAttention):
    """`LongcatFlashMLA`: queries, and the latent, are multiplied by numbers."""

    def __call__(self, hidden: Tensor, *shared: Any) -> tuple[Tensor, Tensor | None]:
        cos, sin, mask = shared
        spec, (batch, tokens, _) = self.spec, hidden.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden)))
        q = transpose(reshape(q, (batch, tokens, -1, spec.qk_head_dim)), 1, 2)
        q_pass, q_rot = split(q, (spec.qk_nope_head_dim, spec.head_dim), 3)
        compressed = self.kv_a_proj(hidden)
        kv_pass, k_rot = split(compressed, (spec.kv_lora_rank, spec.head_dim), 2)
        k_pass = self.kv_a_layernorm(kv_pass)
        q_pass = mul_scalar(q_pass)
        q_rot = mul_scalar(q_rot)
        k_pass = mul_scalar(k_pass)
        k_pass = reshape(k_pass, (batch, 1, tokens, spec.kv_lora_rank))
        k_rot = reshape(k_rot, (batch, 1, tokens, spec.head_dim))
        q_rot, k_rot = rotate_neighbours(q_rot, k_rot, cos, sin)
        queries = cat((q_pass, q_rot), 3)
        keys, values = self.expand(k_pass, k_rot)
        out, weights = self.attend(queries, keys, values, mask)
        out = self.o_proj(reshape(out, (batch, tokens, -1)))
        del compressed, kv_pass
        return out, weights


class Router:
    """The best of all experts, with those that do nothing (`LongcatFlashTopkRouter`)."""

    def __init__(self, spec: LongcatFlashSpec, build: Builder):
        if build.adapter is not None and build.adapter.targets("mlp.router.classifier"):
            raise InvalidJob(
                "the router's weight is used without its layer: an adapter on classifier would learn nothing; list other layers, "
                "such as q_b_proj",
                "training.adapter.targets",
            )
        self.spec = spec
        build.bypassed.append("mlp.router.classifier")
        self.weight = build.weight("mlp.router.classifier.weight", (spec.all_experts, spec.hidden_size))
        self.correction = build.buffer("mlp.router.e_score_correction_bias", (spec.all_experts,), build.dtype)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        with entered(self.weight):
            logits = linear(to(flat, dtypes.float32), to(self.weight(), dtypes.float32))
        scores = softmax(logits)
        with no_grad(scores.tape):
            ranked = add(scores, self.correction)
            chosen = topk(ranked, self.spec.num_experts_per_tok)[1]
            del ranked
        weights = gather(scores, chosen)
        weights = mul_scalar(weights)
        return logits, to(weights, logits.dtype), chosen


class Experts:
    """All experts of a layer, called one after the other."""

    def __init__(self, spec: LongcatFlashSpec, build: Builder):
        hidden, width, every = spec.hidden_size, spec.moe_intermediate_size, spec.all_experts
        used = max(spec.num_experts_per_tok * spec.num_experts // every, 1)
        self.gate_up_proj = build.weight("mlp.experts.gate_up_proj", (every, 2 * width, hidden), used)
        self.down_proj = build.weight("mlp.experts.down_proj", (spec.num_experts, hidden, width), used)
        self.width = width
        self.act = ACTIVATIONS[spec.hidden_act]
        self.working = Group("experts", spec.num_experts)
        self.loop = StackedLoop(build, (self.working, Group("zero experts", spec.zero_expert_num)))

    def __call__(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        with entered(self.down_proj, self.gate_up_proj):
            return self._forward(hidden, chosen, weights)

    def _forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = empty(hidden.tape, hidden.shape, hidden.dtype, "zeros_like")
        masks = self.loop.masks(chosen, self.loop.experts)
        for group in self.loop.each():
            place, rows = self.loop.where(chosen)
            state = index(hidden, (rows,), (*rows.shape, hidden.shape[1]))
            if group is self.working:
                _asked = self.gate_up_proj()  # whether there are any; an adapter adds to all of them each time
                del _asked
                gate, up = split(linear(state, select(self.gate_up_proj(), 0)), (self.width, self.width), 1)
                result = mul(self.act(gate), up)
                result = linear(result, select(self.down_proj(), 0))
            else:
                result = state
            result = mul(result, index(unsqueeze(weights, 2), (rows, place), (*rows.shape, 1)))
            out = index_add_(out, rows, to(result, hidden.dtype))
        del masks
        return out


class Moe:
    def __init__(self, spec: LongcatFlashSpec, build: Builder):
        self.experts = Experts(spec, build)
        self.router = Router(spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        logits, weights, chosen = self.router(hidden)
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        out = reshape(self.experts(flat, chosen, weights), hidden.shape)
        del logits
        return out


class Layer:
    """`LongcatFlashDecoderLayer`: what the experts give of its middle is added at its end."""

    def __init__(self, spec: LongcatFlashSpec, build: Builder):
        self.mlp = Moe(spec, build)
        self.attention = [Attention(spec, build, f"self_attn.{i}") for i in BOTH]
        self.mlps = [GatedMLP(spec, build, f"mlps.{i}") for i in BOTH]
        self.before_attention = [build.rms_norm(f"input_layernorm.{i}", spec.hidden_size) for i in BOTH]
        self.before_mlp = [build.rms_norm(f"post_attention_layernorm.{i}", spec.hidden_size) for i in BOTH]

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.before_attention[0](hidden)
        out, _ = self.attention[0](out, *shared[:-1])
        out = add(residual, out)
        residual = out
        out = self.before_mlp[0](out)
        shortcut = self.mlp(out)
        out = self.mlps[0](out)
        out = add(residual, out)
        residual = out
        out = self.before_attention[1](out)
        out, _ = self.attention[1](out, *shared[:-1])
        out = add(residual, out)
        residual = out
        out = self.before_mlp[1](out)
        out = self.mlps[1](out)
        return add(add(residual, out), shortcut)


def longcat_flash(spec: LongcatFlashSpec, build: Builder) -> Decoder:
    """The body of the model."""
    return Decoder(spec, build, lambda _: Layer(spec, build), rotary=Rotary(spec.head_dim))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(longcat_flash(spec, build), spec, build)}
