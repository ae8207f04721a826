"""GPT-OSS: attention with sinks, by hand only; experts with biases and a clamped gate. Weights as trained, in half precision.

After transformers' modeling_gpt_oss.py (5.23). Layers with and without a sliding window differ in their masks only.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.decoder import Decoder, Table
from estimator.families.decoder_layers import SelfAttention
from estimator.families.experts import AUXILIARY, Experts, MoeSpec, entered
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.llama import LlamaRotary, LlamaSpec
from estimator.families.modules import rotary_table
from estimator.families.norms import WideRMSNorm
from estimator.families.spec import DecoderSpec, Size, called
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.math_attention import repeat_heads
from estimator.tape.matmul import linear, matmul
from estimator.tape.pointwise import add, add_scalar, clamp, dropout, mul, mul_scalar, sigmoid, softmax, sub, to
from estimator.tape.selection import max_last, topk
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, contiguous, every_second, expand, narrow, reshape, split, transpose, unsqueeze


class GptOssSpec(LlamaSpec, MoeSpec):
    window_pool = "0.4.10"
    parts_in_sglang = True
    can = Abilities(gguf=True, graph="gpt-oss", routing="of the chosen", mlx_routers="8 bits")
    input_first = ("experts",)
    modelled = AUXILIARY
    attentions = ("eager",)
    tensor_parallel = cached = False

    max_position_embeddings: Size | None = 131072
    num_experts: Size = called("num_local_experts", 128)
    num_experts_per_tok: Size = 4
    sliding_window: Size = 128
    attention_bias: bool = True
    layer_types: list[LayerType] | None = None

    def kinds(self) -> list[LayerType]:
        """What each layer sees; every second one, from the first on, has a sliding window unless the config says otherwise."""
        return self.layer_types or [FULL if i % 2 else SLIDING for i in range(self.num_hidden_layers)]

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        heads, size, window = self.num_key_value_heads, self.head_dim, self.sliding_window
        return tuple([attention(heads, size, window if kind == SLIDING else None) for kind in self.kinds()])

    @property
    def served_tables(self) -> tuple[int, ...]:
        """In float32 (vllm/model_executor/models/gpt_oss.py: `get_rope`)."""
        return ((self.max_position_embeddings or 0) * self.head_dim * dtypes.float32.itemsize,)

    @model_validator(mode="after")
    def _one_type_each(self) -> Self:
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for {self.num_hidden_layers} layers")
        return self


SPECS = {"gpt_oss": GptOssSpec}


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding of both halves of each head, written out."""
    half = x.shape[-1] // 2
    first, second = split(x, (half, half), 3)
    new_first = sub(mul(first, cos), mul(second, sin))
    new_second = add(mul(second, cos), mul(first, sin))
    return cat((new_first, new_second), 3)


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotated_q = rotated(q, c, s)
    return rotated_q, rotated(k, c, s)


class GptOssAttention(GroupedQueryAttention):
    def __init__(self, spec: GptOssSpec, build: Builder):
        sinks = build.parameter("self_attn.sinks", (spec.num_attention_heads,))
        super().__init__(spec, build, spec.attention_bias, spec.attention_bias, rotate=_rotate)
        self.attend: Any = AttentionWithSinks(sinks, spec.attention_dropout if build.training else 0.0)


class AttentionWithSinks:
    """Each head has one score more, that of its sink, which takes its share of the softmax and is then dropped."""

    def __init__(self, sinks: Tensor, dropout: float):
        self.sinks, self.dropout = sinks, dropout

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, values = repeat_heads(q, k), repeat_heads(q, v)
        weights = mul_scalar(matmul(q, transpose(keys, 2, 3)))
        if mask is not None:
            weights = add(weights, mask)
        batch, heads, tokens, length = weights.shape
        sinks = expand(reshape(self.sinks, (1, -1, 1, 1)), (batch, heads, tokens, 1))
        combined = cat((weights, sinks), 3)
        combined = sub(combined, max_last(combined, keepdim=True)[0])
        probabilities = softmax(combined, combined.dtype)
        scores = narrow(probabilities, 3, length)
        weights = to(dropout(scores, self.dropout), values.dtype)
        out = matmul(weights, values)
        out = contiguous(transpose(out, 1, 2))
        return out, weights


class GptOssRouter:
    """The best experts by their scores, and a softmax over those only, in their type."""

    def __init__(self, spec: GptOssSpec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.weight = build.weight("mlp.router.weight", (spec.num_experts, spec.hidden_size))
        self.bias = build.parameter("mlp.router.bias", (spec.num_experts,))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(hidden, self.weight(), self.bias)
            best, chosen = topk(logits, self.top_k)
            return logits, softmax(best, best.dtype), chosen


class GptOssExperts(Experts):
    transposed = True

    def bias(self, build: Builder, name: str, shape: tuple[int, int], used: int) -> Tensor | None:
        return build.parameter(name, shape, active=used * shape[1])

    def gate(self, gate_up: Tensor) -> Tensor:
        """(up + 1) * gate * sigmoid(alpha gate), both clamped; gate and up alternate."""
        gate, up = every_second(gate_up), every_second(gate_up)
        gate = clamp(gate, lower=False)
        up = clamp(up)
        glu = mul(gate, sigmoid(mul_scalar(gate)))
        return mul(add_scalar(up), glu)


class GptOssMoe:
    def __init__(self, spec: GptOssSpec, build: Builder):
        self.router = GptOssRouter(spec, build)
        self.experts = GptOssExperts(spec, build)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.router(flat)
        out = self.experts(flat, chosen, weights)
        del logits
        return reshape(out, hidden.shape), weights


class GptOssLayer:
    """Not a `PreNorm`: the experts give their weights, too, which take the place of attention's in the frame."""

    def __init__(self, spec: GptOssSpec, build: Builder):
        self.self_attn: SelfAttention = GptOssAttention(spec, build)
        self.mlp = GptOssMoe(spec, build)
        self.input_layernorm = WideRMSNorm(build, "input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = WideRMSNorm(build, "post_attention_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, *shared[:-1])
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out, _ = self.mlp(out)
        return add(residual, out)


class HalfTable(LlamaRotary):
    """Cosines and sines are not repeated for both halves of a head."""

    def table(self, tape: Tape, tokens: int, dtype: DType) -> Table:
        return rotary_table(tape, tokens, self.size // 2, dtype)


def gpt_oss(spec: GptOssSpec, build: Builder) -> Decoder:
    """The body of the model."""
    norm = partial(WideRMSNorm, build)
    return Decoder(
        spec, build, lambda _: GptOssLayer(spec, build), spec.kinds(), rotary=HalfTable(spec.head_dim), norm=norm, masks=_masks
    )


def _masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    return {kind: causal_mask(tape, batch, tokens, dtype, implementation, None) for kind in (FULL, SLIDING)}


HEADS = decoder_heads(gpt_oss)
