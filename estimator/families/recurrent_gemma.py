"""RecurrentGemma: layers with a gated linear recurrence (RG-LRU), and every third one with attention to a sliding window.

After transformers' modeling_recurrent_gemma.py (5.23), where the recurrence is a loop over the tokens, which keeps every state
for backward. A layer's module keeps its last state, and so the graph that made it, until the next forward pass: backward lets go
of what that holds, but a layer that is recomputed makes the graph anew, and what the second run has saved stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention, mamba_state
from estimator.families.decoder import Decoder
from estimator.families.gemma import RMSNorm
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import CausalLM, Head
from estimator.families.hybrid import HybridSpec, Unrotated
from estimator.families.mamba import scan_slots
from estimator.families.modules import ACTIVATIONS, Module, rotary_table, rotate_part
from estimator.families.rotary import PartialRotarySpec, frequencies
from estimator.families.spec import Activation, DecoderSpec, Size, called
from estimator.families.windows import FULL
from estimator.tape import dtypes
from estimator.tape.autograd import Node, attach, record
from estimator.tape.convolution import convolution
from estimator.tape.matmul import baddbmm
from estimator.tape.pointwise import add, exp, mul, mul_scalar, rsub, sigmoid, softplus, tanh, to
from estimator.tape.slots import Slot
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import narrow, permute, reshape, select, transpose, unsqueeze, write_part

Block = Literal["recurrent", "attention"]
RECURRENT: Block = "recurrent"
KEPT = (
    "transformers' recurrent layers keep their last state with the graph that made it until the next forward pass: what a "
    "recomputed layer has saved stays in memory with it"
)


class RecurrentGemmaSpec(HybridSpec, PartialRotarySpec):
    """`intermediate_size` is that of gate and up together. The `block_types` repeat."""

    can = Abilities()
    last_vllm = "none"
    in_sglang = "none"
    why_not_sglang = "its backend for transformers' models keeps no states"
    made = frozenset({"lru_width"})

    intermediate_size: Size = 7680
    max_position_embeddings: Size | None = None
    hidden_act: Activation = called("hidden_activation", "gelu_pytorch_tanh")
    tie_word_embeddings: bool = True
    partial_rotary_factor: float = 0.5
    attention_bias: bool = False
    lru_width: Size
    conv1d_width: Size = 4
    sliding_window: Size = called("attention_window_size", 2048)
    block_types: tuple[Block, ...] = ("recurrent", "recurrent", "attention")

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"lru_width": hidden}

    @property
    def window(self) -> int | None:
        return self.sliding_window

    @property
    def kinds(self) -> tuple[Block, ...]:
        return tuple([self.block_types[i % len(self.block_types)] for i in range(self.num_hidden_layers)])

    @property
    def keeps(self) -> dict[str, tuple[CacheLayer, ...]]:
        window = attention(self.num_key_value_heads, self.head_dim, self.sliding_window)
        return {RECURRENT: (self.state,), "attention": (window,)}

    @property
    def state(self) -> CacheLayer:
        return mamba_state(self.lru_width, self.lru_width, 1, self.conv1d_width, wide=True)

    @model_validator(mode="before")
    @classmethod
    def _width(cls, given: Any) -> Any:
        """A width of null is the model's."""
        if isinstance(given, Mapping) and given.get("lru_width", 0) is None:
            return {name: value for name, value in given.items() if name != "lru_width"}
        return given

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.block_types:
            raise ValueError("block_types is empty: it names no kind of layer")
        if self.intermediate_size % 2:
            raise ValueError(f"intermediate_size {self.intermediate_size} is odd: half of it is that of gate, and of up")
        if self.lru_width % self.num_attention_heads:
            raise ValueError(f"lru_width {self.lru_width} is not a multiple of num_attention_heads {self.num_attention_heads}")
        return self

    def config(self) -> dict[str, Any]:
        own = {name: value for name, value in super().config().items() if name not in ("max_position_embeddings", "head_dim")}
        return own | {"block_types": [*self.block_types]}


SPECS = {"recurrent_gemma": RecurrentGemmaSpec}


class SelfAttention(GroupedQueryAttention):
    """Attention that makes the tables of its rotary embedding itself."""

    def __init__(self, spec: RecurrentGemmaSpec, build: Builder):
        super().__init__(spec, build, spec.attention_bias, True, rotate=self._turned)
        self.size = spec.rotary_size
        self.buffers = frequencies(build, self.size)

    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        size, queries, keys = (
            spec.hidden_size,
            spec.num_attention_heads * spec.head_dim,
            spec.num_key_value_heads * spec.head_dim,
        )
        self.q_proj = build.linear("temporal_block.q_proj", size, queries, bias)
        self.k_proj = build.linear("temporal_block.k_proj", size, keys, bias)
        self.v_proj = build.linear("temporal_block.v_proj", size, keys, bias)
        self.o_proj = build.linear("temporal_block.o_proj", queries, size, output_bias)

    def _turned(self, q: Tensor, k: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        cos, sin = rotary_table(q.tape, q.shape[2], self.size, q.dtype)
        q, k = rotate_part(q, k, cos, sin)
        return q, k, cos, sin


class Recurrence:
    """`RecurrentGemmaRglru`."""

    def __init__(self, spec: RecurrentGemmaSpec, build: Builder):
        name, heads = "temporal_block.rg_lru", spec.num_attention_heads
        self.heads, self.size, self.unrolled = heads, spec.lru_width // heads, build.unrolled
        square, row = (heads, self.size, self.size), (heads, self.size)
        self.recurrent_param = build.parameter(f"{name}.recurrent_param", (spec.lru_width,))
        self.input_weight = build.parameter(f"{name}.input_gate_weight", square)
        self.input_bias = build.parameter(f"{name}.input_gate_bias", row)
        self.recurrent_weight = build.parameter(f"{name}.recurrent_gate_weight", square)
        self.recurrent_bias = build.parameter(f"{name}.recurrent_gate_bias", row)
        self.last: Tensor | None = None
        """The state after the last token, until the next forward pass."""
        self.made: list[tuple[Slot, Node | None]] = []
        """What made the state after each token, in its slot."""

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        reset = empty(x.tape, (*positions.shape, 1), dtypes.bool_, "eq")
        by_head = permute(reshape(x, (batch * tokens, self.heads, self.size)), (1, 0, 2))
        gate = baddbmm(unsqueeze(self.input_bias, 1), by_head, self.input_weight, scaled=False)
        input_gate = sigmoid(reshape(transpose(gate, 0, 1), x.shape))
        gate = baddbmm(unsqueeze(self.recurrent_bias, 1), by_head, self.recurrent_weight, scaled=False)
        recurrent_gate = sigmoid(reshape(transpose(gate, 0, 1), x.shape))
        exponent = mul(mul_scalar(recurrent_gate), softplus(self.recurrent_param))
        recurrent_gate = exp(exponent)
        square = exp(mul_scalar(exponent))
        gated = mul(x, input_gate)
        multiplier = _bounded_root(rsub(square))
        multiplier = add(reset, mul(_inverted(reset), multiplier))
        normalized = mul(gated, to(multiplier, x.dtype))
        out = self._scan(normalized, recurrent_gate, reset)
        del by_head, gate, input_gate, recurrent_gate, exponent, square, gated, multiplier, normalized, width
        return out

    def forget(self) -> None:
        """Let go of the last state and its graph, of each token in the slot that it was made in."""
        if self.last is None:
            return
        tape = self.last.tape
        here = tape.slot
        while self.made:
            tape.enter(self.made[-1][0])
            self.last = None
            self.made.pop()
        tape.enter(here)

    def _scan(self, hidden: Tensor, given: Tensor, reset: Tensor) -> Tensor:
        """The states of all tokens in the type of `hidden`; the last one is kept.

        Two tokens at each end stand apart: no state before the first wants a gradient, so that the second's product is the one
        which, last in backward, holds all gates.
        """
        gate = mul(given, _inverted(reset))
        tape, (batch, tokens, width) = hidden.tape, hidden.shape
        state = empty(tape, (batch, width), dtypes.float32, "zeros")
        out = unary("zeros_like", hidden)
        layer = tape.slot
        for slot in scan_slots("tokens", tokens, layer, self.unrolled, apart=2):
            tape.enter(slot)
            state = mul(to(select(gate, 1), dtypes.float32), state)
            state = add(state, to(select(hidden, 1), dtypes.float32))
            self.made.append((slot, state.grad_fn))
            out = write_part(out, to(state, hidden.dtype))
        tape.enter(layer)
        self.last = state
        return out


def _inverted(mask: Tensor) -> Tensor:
    return unary("bitwise_not", mask)


def _bounded_root(x: Tensor) -> Tensor:
    """A square root with a clipped gradient (`SqrtBoundDerivative`). Saves x."""

    def backward(g: Tensor, x: Tensor) -> Tensor:
        clipped = unary("clamp", unary("mul", x))
        out = binary("div", g, unary("sqrt", clipped))
        del clipped
        return out

    return attach(record("SqrtBoundDerivativeBackward", (x,), (x,), backward), unary("sqrt", x))


class RecurrentBlock:
    def __init__(self, spec: RecurrentGemmaSpec, build: Builder):
        name, size, width = "temporal_block", spec.hidden_size, spec.lru_width
        self.linear_y, self.linear_x = (build.linear(f"{name}.{part}", size, width, True) for part in ("linear_y", "linear_x"))
        self.linear_out = build.linear(f"{name}.linear_out", width, size, True)
        self.kernel = spec.conv1d_width
        self.conv_weight = build.parameter(f"{name}.conv_1d.weight", (width, 1, self.kernel))
        self.conv_bias = build.parameter(f"{name}.conv_1d.bias", (width,))
        self.rg_lru = Recurrence(spec, build)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> tuple[Tensor, None]:
        y = self.linear_y(hidden)
        y = self.act(y)
        x = self.linear_x(hidden)
        x = transpose(x, 1, 2)
        self.rg_lru.forget()
        x = narrow(convolution(x, self.conv_weight, self.conv_bias, padding=self.kernel - 1), 2, hidden.shape[1])
        x = self.rg_lru(transpose(x, 1, 2), positions)
        out = mul(x, y)
        return self.linear_out(out), None


class MLP:
    """down(activation(gate(x)) * up(x)), of half the stated width."""

    def __init__(self, spec: RecurrentGemmaSpec, build: Builder):
        size, width = spec.hidden_size, spec.intermediate_size // 2
        self.gate_proj = build.linear("mlp_block.gate_proj", size, width, True)
        self.up_proj = build.linear("mlp_block.up_proj", size, width, True)
        self.down_proj = build.linear("mlp_block.down_proj", width, size, True)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        gate = self.act(self.gate_proj(x))
        return self.down_proj(mul(gate, self.up_proj(x)))


class Layer:
    def __init__(self, spec: RecurrentGemmaSpec, build: Builder, kind: Block):
        self.temporal_pre_norm: Module = RMSNorm(build, "temporal_pre_norm", spec.hidden_size)
        self.recurrent = RecurrentBlock(spec, build) if kind == RECURRENT else None
        self.attention = SelfAttention(spec, build) if kind != RECURRENT else None
        self.channel_pre_norm: Module = RMSNorm(build, "channel_pre_norm", spec.hidden_size)
        self.mlp_block = MLP(spec, build)

    def __call__(self, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        normed = self.temporal_pre_norm(hidden)
        if self.recurrent is not None:
            out, _ = self.recurrent(normed, mask, positions)
        else:
            assert self.attention is not None
            out, _ = self.attention(normed, normed, normed, mask)
        residual = add(out, hidden)
        out = self.channel_pre_norm(residual)
        out = self.mlp_block(out)
        return add(out, residual)


def body(spec: RecurrentGemmaSpec, build: Builder) -> Decoder:
    """The body of the model."""
    build.carries = True
    if build.recomputes:
        build.tape.remarks[KEPT] = None

    def norm(name: str, size: int) -> Module:
        return RMSNorm(build, name, size)

    decoder = Decoder(
        spec,
        build,
        lambda kind: Layer(spec, build, kind),
        spec.kinds,
        rotary=Unrotated(),
        norm=norm,
        last="final_norm",
        begin=lambda embeds: (mul(embeds, to(normalizer, embeds.dtype)), embeds),
        sees=lambda _: FULL,
    )
    normalizer = build.buffer("normalizer", (), dtypes.bfloat16)
    return decoder


class SoftcappedLM(CausalLM):
    """Logits go through a tanh, in one expression."""

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return mul_scalar(tanh(mul_scalar(logits)))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: SoftcappedLM(body(spec, build), spec, build)}
