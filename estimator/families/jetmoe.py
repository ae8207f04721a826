"""JetMoE: experts in the feed-forward layers and in attention, where each expert has queries and an output layer of its own.

Keys and values are the same for all experts. After transformers' modeling_jetmoe.py (5.23), which calls its experts one after the
other on tokens that are sorted by expert, and never recomputes its layers. How many tokens an expert gets is data; here each gets
the same number, as nearly as that goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.expert_loop import EVEN
from estimator.families.experts import AUXILIARY, MoeSpec, entered
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS, rotate
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Activation, Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, mul, softmax, to
from estimator.tape.selection import index_add_, sort, topk
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import cat, index, repeat, reshape, select, split, transpose, unsqueeze


class JetMoeSpec(RotarySpec, MoeSpec):
    """Each of a token's experts has a query for each of the `num_key_value_heads`."""

    can = Abilities()
    modelled = AUXILIARY
    recomputed = False
    last_vllm = "none"
    in_sglang = "none"
    why_not_sglang = "its backend for transformers' models knows no experts in attention"
    made = frozenset({"num_attention_heads"})

    intermediate_size: Size = 5632
    num_key_value_heads: Size = 16
    head_dim: Size = called("kv_channels", 128)
    hidden_act: Activation = called("activation_function", "silu")
    max_position_embeddings: Size | None = 4096
    num_experts: Size = called("num_local_experts", 8)
    num_experts_per_tok: Size = 2
    tie_word_embeddings: bool = True

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {}

    @model_validator(mode="before")
    @classmethod
    def _queries(cls, given: Any) -> Any:
        """The heads of queries, which follow from those of keys, whatever else a config.json says, as transformers has it."""
        if not isinstance(given, Mapping):
            return given
        keys, used = given.get("num_key_value_heads", 16), given.get("num_experts_per_tok", 2)
        return {**given, "num_attention_heads": keys * used} if isinstance(keys, int) and isinstance(used, int) else given

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "num_attention_heads"}


SPECS = {"jetmoe": JetMoeSpec}


class ParallelExperts:
    """A linear layer of each expert, [experts, out, in], for tokens that are sorted by expert (`JetMoeParallelExperts`)."""

    def __init__(self, spec: JetMoeSpec, build: Builder, name: str, inputs: int, outputs: int):
        self.experts = spec.num_experts
        self.weight = build.weight(name + ".weight", (self.experts, outputs, inputs), spec.num_experts_per_tok)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        sizes = [-(-(rows - i) // self.experts) for i in range(self.experts)]
        outs: list[Tensor] = []
        with entered(self.weight):
            parts = split(x, sizes, 0)
            for part in parts:
                outs.append(linear(part, select(self.weight(), 0)))
            return cat(outs, 0)


class Routed(NamedTuple):
    """The order of choices by expert, the token of each, its weight, and the scores."""

    order: Tensor
    tokens: Tensor
    gates: Tensor
    logits: Tensor


class Router:
    """The best experts by their scores, and a softmax over those only (`JetMoeTopKGating`)."""

    def __init__(self, spec: JetMoeSpec, build: Builder, name: str):
        self.experts, self.top_k = spec.num_experts, spec.num_experts_per_tok
        self.layer = build.router(name + ".layer", spec.hidden_size, spec.num_experts)

    def __call__(self, hidden: Tensor) -> Routed:
        tape = hidden.tape
        logits = to(self.layer(hidden), dtypes.float32)
        best, chosen = topk(logits, self.top_k)
        gates = to(softmax(best), hidden.dtype)
        zeros = empty(tape, (hidden.shape[0], self.experts), gates.dtype, "zeros")
        marks = unary("scatter", zeros)
        marked = unary("_to_copy", marks, dtypes.int64)
        counts = empty(tape, (self.experts,), dtypes.int64, "sum")
        del marked, counts
        sorted_choices, order = sort(reshape(chosen, (-1,)))
        tokens = unary("div", order)
        gates = reshape(gates, (-1,))
        weights = index(gates, (order,), order.shape)
        del zeros, marks, sorted_choices
        return Routed(order, tokens, weights, logits)


class Experts:
    """Experts of two layers, between which `JetMoeMoE` gates and `JetMoeMoA` attends. A bias is added to what all give together.

    `middle`: what the first gives, and what the second takes.
    """

    def __init__(self, spec: JetMoeSpec, build: Builder, name: str, middle: tuple[int, int]):
        self.top_k = spec.num_experts_per_tok
        self.bias = build.parameter(name + ".bias", (spec.hidden_size,))
        self.first = ParallelExperts(spec, build, name + ".input_linear", spec.hidden_size, middle[0])
        self.last = ParallelExperts(spec, build, name + ".output_linear", middle[1], spec.hidden_size)
        self.router = Router(spec, build, name + ".router")

    def _summed(self, out: Tensor, routed: Routed, batch: int) -> Tensor:
        """What experts give, summed for each token, and the bias."""
        zeros = empty(out.tape, (out.shape[0] // self.top_k, out.shape[1]), out.dtype, "zeros")
        summed = index_add_(unary("index_add", zeros), routed.tokens, out)
        summed = reshape(summed, (batch, -1, out.shape[1]))
        summed = add(summed, self.bias)
        del zeros
        return summed


class FeedForward(Experts):
    def __init__(self, spec: JetMoeSpec, build: Builder):
        super().__init__(spec, build, "mlp", (2 * spec.intermediate_size, spec.intermediate_size))
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor) -> Tensor:
        batch, _, size = hidden.shape
        flat = reshape(hidden, (-1, size))
        routed = self.router(flat)
        taken = index(flat, (routed.tokens,), (*routed.tokens.shape, size))
        out = self.first(taken)
        half = out.shape[1] // 2
        gate, up = split(out, (half, half), 1)
        middle = mul(self.act(gate), up)
        out = self.last(middle)
        out = mul(out, unsqueeze(routed.gates, 1))
        out = self._summed(out, routed, batch)
        del taken, gate, up, middle
        return out


class AttentionExperts(Experts):
    def queries(self, hidden: Tensor) -> tuple[Tensor, Routed]:
        """Queries of each token's experts, [batch, tokens, chosen experts, size]; and how they were chosen."""
        batch, tokens, size = hidden.shape
        flat = reshape(hidden, (-1, size))
        routed = self.router(flat)
        taken = index(flat, (routed.tokens,), (*routed.tokens.shape, size))
        out = self.first(taken)
        zeros = empty(out.tape, out.shape, out.dtype, "zeros")
        ungrouped = index_add_(unary("index_add", zeros), routed.order, out)
        del taken, zeros, out
        return reshape(ungrouped, (batch, tokens, self.top_k, -1)), routed

    def reduced(self, attended: Tensor, routed: Routed) -> Tensor:
        """What each token gets of what its experts' queries found."""
        batch, size = attended.shape[0], attended.shape[-1]
        flat = reshape(attended, (-1, size))
        taken = index(flat, (routed.order,), (*routed.order.shape, size))
        out = self.last(taken)
        out = mul(out, unsqueeze(routed.gates, 1))
        out = self._summed(out, routed, batch)
        del taken
        return out


class SelfAttention:
    def __init__(self, spec: JetMoeSpec, build: Builder):
        self.head_dim, self.top_k = spec.head_dim, spec.num_experts_per_tok
        self.width = spec.num_key_value_heads * spec.head_dim
        self.experts = AttentionExperts(spec, build, "self_attention.experts", (self.width, self.width))
        self.kv_proj = build.linear("self_attention.kv_proj", spec.hidden_size, 2 * self.width)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """What each token gets, and the scores of its experts."""
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q, routed = self.experts.queries(hidden)
        k, v = split(self.kv_proj(hidden), (self.width, self.width), 2)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        q, k = rotate(q, k, cos, sin)
        k = repeat(k, self.top_k, 1)
        v = repeat(v, self.top_k, 1)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, self.top_k, -1))
        out = self.experts.reduced(out, routed)
        del weights
        return out, routed.logits


class Layer:
    def __init__(self, spec: JetMoeSpec, build: Builder):
        build.tape.remarks[EVEN] = None
        self.mlp = FeedForward(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.self_attention = SelfAttention(spec, build)

    def __call__(self, hidden: Tensor, *shared: Any) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _scores = self.self_attention(out, *shared[:-1])
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return add(residual, out)


def jetmoe(spec: JetMoeSpec, build: Builder) -> Decoder:
    """The body of the model."""
    return Decoder(spec, build, lambda _: Layer(spec, build))


HEADS = decoder_heads(jetmoe)
