"""DBRX: queries, keys and values in one clamped layer, and experts whose three matrices lie in one tensor each.

After transformers' modeling_dbrx.py (5.23), which calls its experts one after the other and ignores `emb_pdrop`. How many tokens
an expert gets is data; here each gets the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from estimator.contract.errors import Contradiction
from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.experts import AUXILIARY, MoeSpec, entered
from estimator.families.heads import CausalLM, Head
from estimator.families.modules import ACTIVATIONS, rotate
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Depth, Probability, Size, called
from estimator.families.stacked_loop import Group, StackedLoop
from estimator.tape.autograd import attach, record
from estimator.tape.matmul import linear, mm
from estimator.tape.pointwise import add, clamp, div, dropout, mul, mul_, softmax, to
from estimator.tape.selection import index_add_, topk
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import index, reshape, select, split, transpose, unsqueeze


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class AttentionPart(_Part):
    """`attn_config`."""

    attn_pdrop: Probability = 0.0
    clip_qkv: float
    kv_n_heads: Size = 1
    rope_theta: float = 10000.0


class FeedForwardPart(_Part):
    """`ffn_config`. `moe_jitter_eps`: what the experts read is multiplied by random numbers in training."""

    ffn_act_fn: dict[str, Literal["silu", "gelu", "relu"]] = {"name": "silu"}
    ffn_hidden_size: Size = 3584
    moe_num_experts: Size = 4
    moe_top_k: Size = 1
    moe_jitter_eps: float | None = None
    moe_loss_weight: float = 0.01
    moe_normalize_expert_weights: float | None = 1.0

    @model_validator(mode="after")
    def _sums(self) -> Self:
        if self.moe_normalize_expert_weights not in (None, 1.0):
            raise ValueError(f"moe_normalize_expert_weights {self.moe_normalize_expert_weights} is not modelled; 1 and null are")
        return self


class DbrxSpec(RotarySpec, MoeSpec):
    can = Abilities()
    modelled = {**AUXILIARY}
    made = frozenset({"intermediate_size", "num_key_value_heads", "num_experts", "num_experts_per_tok"})

    hidden_size: Size = called("d_model")
    num_hidden_layers: Depth = called("n_layers")
    num_attention_heads: Size = called("n_heads")
    max_position_embeddings: Size | None = called("max_seq_len", 2048)
    resid_pdrop: Probability = 0.0
    attn_config: AttentionPart
    ffn_config: FeedForwardPart = Field(default_factory=FeedForwardPart)

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"head_dim": hidden // heads}

    @model_validator(mode="before")
    @classmethod
    def _of_parts(cls, given: Any) -> Any:
        """What decoders' specs say, of its two parts."""
        if not isinstance(given, Mapping):
            return given
        attends = AttentionPart.model_validate(given.get("attn_config") or {})
        feeds = FeedForwardPart.model_validate(given.get("ffn_config") or {})
        said = {
            "attention_dropout": attends.attn_pdrop,
            "num_key_value_heads": attends.kv_n_heads,
            "intermediate_size": feeds.ffn_hidden_size,
            "num_experts": feeds.moe_num_experts,
            "num_experts_per_tok": feeds.moe_top_k,
            "hidden_act": feeds.ffn_act_fn.get("name", "silu"),
        }
        return {**given, **said, "attn_config": attends, "ffn_config": feeds}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads or self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.num_attention_heads} heads do not divide d_model, or are no multiple of kv_n_heads")
        return self

    def config(self) -> dict[str, Any]:
        names = (
            "model_type",
            "d_model",
            "n_layers",
            "n_heads",
            "max_seq_len",
            "vocab_size",
            "resid_pdrop",
            "tie_word_embeddings",
        )
        own = super().config()
        return {name: own[name] for name in (*names, "attn_config", "ffn_config")}


SPECS = {"dbrx": DbrxSpec}


class SelfAttention:
    def __init__(self, spec: DbrxSpec, build: Builder):
        self.spec = spec
        size, keys = spec.hidden_size, spec.num_key_value_heads * spec.head_dim
        self.parts = (size, keys, keys)
        self.wqkv = build.linear("norm_attn_norm.attn.Wqkv", size, sum(self.parts))
        self.out_proj = build.linear("norm_attn_norm.attn.out_proj", size, size)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.spec.head_dim)
        mixed = self.wqkv(hidden)
        mixed = clamp(mixed)
        q, k, v = split(mixed, self.parts, 2)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        q, k = rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = self.out_proj(reshape(out, (batch, tokens, -1)))
        return out, weights


class Experts:
    """All experts of a layer, called one after the other."""

    def __init__(self, spec: DbrxSpec, build: Builder):
        self.shape = (spec.num_experts, spec.intermediate_size, spec.hidden_size)
        rows, used = (spec.num_experts * spec.intermediate_size, spec.hidden_size), spec.num_experts_per_tok
        self.w1, self.v1, self.w2 = [build.weight(f"ffn.experts.mlp.{name}", rows) for name in ("w1", "v1", "w2")]
        for parameter in build.parameters[-3:]:
            parameter.active = parameter.active * used // spec.num_experts
        self.act = ACTIVATIONS[spec.hidden_act]
        self.loop = StackedLoop(build, (Group("experts", spec.num_experts),))

    def __call__(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        if hidden.tape.autocast:
            raise Contradiction(
                "transformers' experts of dbrx fail under autocast: they add rows in half precision to others in float32; write "
                "bf16-true, or parallelism.strategy fsdp2, whose policy casts all",
                "training.precision",
            )
        batch, size = hidden.shape[0], hidden.shape[-1]
        hidden = reshape(hidden, (-1, size))
        out = empty(hidden.tape, hidden.shape, hidden.dtype, "zeros_like")
        masks = self.loop.masks(chosen, self.loop.experts + 1)
        with entered(self.w1, self.v1, self.w2):
            for _ in self.loop.each():
                place, rows = self.loop.where(chosen)
                v1 = select(reshape(self.v1(), self.shape), 0)
                w1 = select(reshape(self.w1(), self.shape), 0)
                w2 = select(reshape(self.w2(), self.shape), 0)
                states = self._expert(index(hidden, (rows,), (*rows.shape, size)), w1, v1, w2)
                states = mul(states, index(unsqueeze(weights, 2), (rows, place), (*rows.shape, 1)))
                out = index_add_(out, rows, states)
        del masks
        return reshape(out, (batch, -1, size))

    def _expert(self, x: Tensor, w1: Tensor, v1: Tensor, w2: Tensor) -> Tensor:
        gate = linear(x, w1)
        up = linear(x, v1)
        gate = self.act(gate)
        middle = mul(gate, up)
        return mm(middle, w2)


class FeedForward:
    def __init__(self, spec: DbrxSpec, build: Builder):
        self.top_k, self.jitters = spec.num_experts_per_tok, build.training and spec.ffn_config.moe_jitter_eps is not None
        self.normalizes = spec.ffn_config.moe_normalize_expert_weights is not None
        self.router = build.router("ffn.router.layer", spec.hidden_size, spec.num_experts)
        self.experts = Experts(spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.jitters:
            hidden = mul_(hidden, unary("uniform_", hidden.detach()))
        logits = self.router(reshape(hidden, (-1, hidden.shape[-1])))
        weights, chosen = self._route(logits)
        out = self.experts(hidden, chosen, weights)
        del logits
        return out

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = softmax(logits, logits.dtype)
        best, chosen = topk(logits, self.top_k)
        return (div(best, _sum_of_sizes(best)) if self.normalizes else best), chosen


def _sum_of_sizes(x: Tensor) -> Tensor:
    """`torch.norm(x, p=1, dim=-1, keepdim=True)`. Saves x and its result."""

    def backward(g: Tensor, x: Tensor, _: Tensor) -> Tensor:
        return binary("mul", unary("sgn", x), g)

    node = record("LinalgVectorNormBackward", (x,), (x,), backward)
    return attach(node, empty(x.tape, (*x.shape[:-1], 1), x.dtype, "linalg_vector_norm"), save=True)


class Layer:
    """`DbrxBlock`."""

    def __init__(self, spec: DbrxSpec, build: Builder):
        self.drops = spec.resid_pdrop if build.training else 0.0
        self.norm_1 = build.layer_norm("norm_attn_norm.norm_1", spec.hidden_size, bias=False)
        self.attn = SelfAttention(spec, build)
        self.norm_2 = build.layer_norm("norm_attn_norm.norm_2", spec.hidden_size, bias=False)
        self.ffn = FeedForward(spec, build)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual, out = self._attended(hidden, *shared)
        out = self.ffn(out)
        out = dropout(out, self.drops)
        return add(residual, out)

    def _attended(self, hidden: Tensor, *shared: Any) -> tuple[Tensor, Tensor]:
        residual = hidden
        out = to(self.norm_1(hidden), hidden.dtype)
        out, _ = self.attn(out, *shared[:-1])
        out = dropout(out, self.drops)
        out = add(out, residual)
        return out, to(self.norm_2(out), out.dtype)


def dbrx(spec: DbrxSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(name: str, size: int) -> Any:
        return build.layer_norm(name, size, bias=False)

    return Decoder(spec, build, lambda _: Layer(spec, build), norm=norm, last="norm_f", embedding="wte")


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CausalLM(dbrx(spec, build), spec, build)}
