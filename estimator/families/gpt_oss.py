"""GPT-OSS: attention with sinks, by hand only; experts with biases and a clamped gate. Weights as trained, in half precision.

After transformers' modeling_gpt_oss.py (5.23). Layers with and without a sliding window differ in their masks only.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from estimator import dtypes
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.experts import AUXILIARY, Experts, MoeSpec, entered
from estimator.families.heads import decoder_heads
from estimator.families.layers import Layers
from estimator.families.llama import Llama, LlamaSpec, SelfAttention
from estimator.families.modules import Module, rotary_table
from estimator.specs.spec import Size, called
from estimator.tape.math_attention import repeat_heads
from estimator.tape.matmul import linear, matmul
from estimator.tape.pointwise import (
    add,
    add_scalar,
    clamp,
    dropout,
    mean_last,
    mul,
    mul_scalar,
    pow_scalar,
    rsqrt,
    sigmoid,
    softmax,
    sub,
    to,
)
from estimator.tape.selection import max_last, topk
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, every_second, expand, narrow, reshape, split, transpose, unsqueeze


class GptOssSpec(LlamaSpec, MoeSpec):
    modelled = AUXILIARY
    attentions = ("eager",)
    tensor_parallel = cached = False

    max_position_embeddings: Size | None = 131072
    num_experts: Size = called("num_local_experts", 128)
    num_experts_per_tok: Size = 4
    sliding_window: Size = 128
    attention_bias: bool = True
    layer_types: list[Literal["sliding_attention", "full_attention"]] | None = None

    def windows(self) -> list[bool]:
        """Whether each layer has a sliding window; every second one, from the first on, unless the config says otherwise."""
        if self.layer_types is None:
            return [i % 2 == 0 for i in range(self.num_hidden_layers)]
        return [kind == "sliding_attention" for kind in self.layer_types]

    @model_validator(mode="after")
    def _one_type_each(self) -> Self:
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for {self.num_hidden_layers} layers")
        return self


SPECS = {"gpt_oss": GptOssSpec}


class RMSNorm:
    """Multiplies by its weight before it converts back."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        wide = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(wide))
        wide = mul(wide, rsqrt(add_scalar(variance)))
        return to(mul(self.weight, wide), x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding of both halves of each head, written out."""
    half = x.shape[-1] // 2
    first, second = split(x, (half, half), 3)
    new_first = sub(mul(first, cos), mul(second, sin))
    new_second = add(mul(second, cos), mul(first, sin))
    return cat((new_first, new_second), 3)


class GptOssAttention(SelfAttention):
    def __init__(self, spec: GptOssSpec, build: Builder):
        super().__init__(spec, build)
        self.dropout = spec.attention_dropout if build.training else 0.0
        self.sinks = build.parameter("self_attn.sinks", (spec.num_attention_heads,))

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q, k, v = self.project(hidden, (batch, tokens, -1, self.head_dim))
        q, k = self.turn(q, k, cos, sin)
        out, weights = self.attend_with_sinks(q, k, v, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights

    def turn(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
        rotated_q = rotated(q, c, s)
        return rotated_q, rotated(k, c, s)

    def attend_with_sinks(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each head has one score more, that of its sink, which takes its share of the softmax and is then dropped."""
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
    def __init__(self, spec: GptOssSpec, build: Builder):
        self.self_attn = GptOssAttention(spec, build)
        self.mlp = GptOssMoe(spec, build)
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(build.parameter(f"{name}.weight", (spec.hidden_size,)))
            for name in ("input_layernorm", "post_attention_layernorm")
        )

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, out)
        residual = out
        out = self.post_attention_layernorm(out)
        out, _ = self.mlp(out)
        return add(residual, out)


class GptOss(Llama):
    """The body of the model."""

    def rms_norm(self, build: Builder, size: int) -> Module:
        return RMSNorm(build.parameter("norm.weight", (size,)))

    def stack(self, spec: GptOssSpec, build: Builder) -> Layers:
        return build.layers(spec.windows(), lambda _: GptOssLayer(spec, build))

    def forward(self, ids: Tensor) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids)
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        full, sliding = (causal_mask(tape, batch, tokens, embeds.dtype, "eager", None) for _ in range(2))
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, self.spec.head_dim // 2, hidden.dtype)
        for windowed, layer in self.layers.by_kind():
            hidden = layer(hidden, cos, sin, sliding if windowed else full, positions)
        return self.norm(hidden)


HEADS = decoder_heads(GptOss)
