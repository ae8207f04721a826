"""Arcee's Trinity (AFMoE): gated attention between norms, rotated only where it has a window, and experts chosen by sigmoids.

After transformers' modeling_afmoe.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import Sandwich
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, SharedExpertsSpec, entered
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.norms import WideRMSNorm
from estimator.families.rotations import unrotated
from estimator.families.spec import Size, called
from estimator.families.windows import SLIDING, LayerType, WindowedSpec
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, add_scalar, div, mul, mul_scalar, sigmoid, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, topk
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose


class AfmoeSpec(WindowedSpec, SharedExpertsSpec):
    """`mup_enabled`: embeddings are multiplied by a number."""

    float32_router = True
    can = Abilities(gguf=True, graph="afmoe-1", routing="scaled sigmoid", mlx_routers="8 bits")
    held_in = EXPERTS_HELD_IN
    modelled = {**AUXILIARY, "global_attn_every_n_layers": (4, None)}
    default_period = 4

    max_position_embeddings: Size | None = 16384
    sliding_window: Size = 1024
    num_experts: Size = 64
    num_experts_per_tok: Size = 6
    n_shared_experts: Size = called("num_shared_experts", 2)
    first_k_dense_replace: int = called("num_dense_layers", 1)
    attention_bias: bool = False
    mup_enabled: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": heads, "head_dim": 128}


SPECS = {"afmoe": AfmoeSpec}


class GatedAttention(GroupedQueryAttention):
    """What the heads give is multiplied by a sigmoid of another projection."""

    def __init__(self, spec: AfmoeSpec, build: Builder, kind: LayerType):
        def norm(which: str, _: int) -> WideRMSNorm:
            return WideRMSNorm(build, f"self_attn.{which}_norm", spec.head_dim)

        bias, rotate = spec.attention_bias, None if kind == SLIDING else unrotated
        super().__init__(spec, build, bias, bias, norm=norm, project=_with_gate, rotate=rotate)
        size = spec.num_attention_heads * spec.head_dim
        self.gate_proj = build.linear("self_attn.gate_proj", spec.hidden_size, size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q, k, v, gate = self.project(self, hidden, (batch, tokens, -1, self.head_dim))
        q, k, *_ = self.rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        out = mul(out, sigmoid(gate))
        return self.o_proj(out), weights


def _with_gate(module: Any, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """Queries, keys, values and the gate are projected; then queries and keys are normalised; all but the gate are transposed."""
    q = reshape(module.q_proj(hidden), heads)
    k = reshape(module.k_proj(hidden), heads)
    v = reshape(module.v_proj(hidden), heads)
    gate = module.gate_proj(hidden)
    q = transpose(module.q_norm(q), 1, 2)
    k = transpose(module.k_norm(k), 1, 2)
    return q, k, transpose(v, 1, 2), gate


class Router:
    """The best experts by a sigmoid of their scores, in float32, and a bias; their weights sum to a number.

    PEFT adapts the linear layer's weight as a parameter, as it does of routers that are none (`EXPERTS_HELD_IN`).
    """

    def __init__(self, spec: AfmoeSpec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        build.bypassed.append("mlp.router.gate")
        self.weight = build.weight("mlp.router.gate.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = reshape(hidden, (-1, hidden.shape[-1]))
        with entered(self.weight):
            logits = linear(hidden, self.weight())
        logits = to(logits, dtypes.float32)
        scores = sigmoid(logits)
        best, chosen = topk(add(scores, bias), self.top_k)
        weights = gather(scores, chosen)
        total = add_scalar(sum_dim(weights, -1, keepdim=True))
        weights = div(weights, total)
        weights = mul_scalar(weights)
        del best
        return logits, weights, chosen


class Moe:
    """Experts beside shared ones. The bias of the choice is a parameter that no gradient reaches."""

    def __init__(self, spec: AfmoeSpec, build: Builder):
        self.bias = build.parameter("mlp.expert_bias", (spec.num_experts,), trainable=False)
        self.router = Router(spec, build)
        width = spec.moe_intermediate_size * spec.n_shared_experts
        self.shared_experts = GatedMLP(spec, build, "mlp.shared_experts", width)
        self.experts = Experts(spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.router(hidden, self.bias)
        shared = reshape(self.shared_experts(flat), hidden.shape)
        routed = reshape(self.experts(flat, chosen, weights), hidden.shape)
        out = add(shared, routed)
        del logits
        return out


def afmoe(spec: AfmoeSpec, build: Builder) -> Decoder:
    """The body of the model."""

    def norm(name: str, size: int) -> WideRMSNorm:
        return WideRMSNorm(build, name, size)

    def layer(kind: tuple[LayerType, bool]) -> Sandwich:
        sees, sparse = kind
        attention = GatedAttention(spec, build, sees)
        names = ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm")
        first, second, third, fourth = (norm(name, spec.hidden_size) for name in names)
        mlp: Any = Moe(spec, build) if sparse else GatedMLP(spec, build)
        return Sandwich(attention, mlp, (first, second, third, fourth))

    def begin(embeds: Tensor) -> tuple[Tensor, Tensor]:
        return (mul_scalar(embeds) if spec.mup_enabled else embeds), embeds

    kinds = list(zip(spec.kinds, spec.sparse(), strict=True))
    return Decoder(spec, build, layer, kinds, norm=norm, begin=begin, sees=lambda kind: kind[0])


HEADS = language_model(afmoe)
