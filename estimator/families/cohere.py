"""Cohere's Command R and Command R7B: attention and feed-forward layers side by side, layer norm without biases, written out.

Rotary embeddings turn neighbouring pairs, in float32. In Cohere 2 layers with a sliding window alternate with layers that see
everything and have no position embedding. After transformers' modeling_cohere.py and modeling_cohere2.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator import dtypes
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.heads import CausalLM, Head
from estimator.families.llama import MLP
from estimator.families.modules import rotary_table, token_positions
from estimator.families.rotary import frequencies
from estimator.families.windows import SLIDING, LayerType, WindowedSpec, causal_masks, layer_types
from estimator.specs.spec import RotaryDecoderSpec, Size
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, add_scalar, mean_last, mul, mul_scalar, neg, pow_scalar, rsqrt, sub, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import every_second, reshape, stack_last, transpose, unsqueeze


class _Spec(RotaryDecoderSpec):
    """What both have in common."""

    tie_word_embeddings: bool = True
    attention_bias: bool = False

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised."""
        return False


class CohereSpec(_Spec):
    cached = tensor_parallel = True

    max_position_embeddings: Size | None = 8192
    use_qk_norm: bool | None = False

    @property
    def qk_norm(self) -> bool:
        return bool(self.use_qk_norm)


class Cohere2Spec(_Spec, WindowedSpec):
    default_period = 4

    max_position_embeddings: Size | None = 8192
    sliding_window_pattern: Size = 4

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim != self.hidden_size // self.num_attention_heads:
            raise ValueError(f"head_dim {self.head_dim} is not hidden_size {self.hidden_size} / {self.num_attention_heads} heads")
        return self


SPECS = {"cohere": CohereSpec, "cohere2": Cohere2Spec}


class LayerNorm:
    """Layer norm without a bias, in float32 and by hand: the mean is taken off twice."""

    def __init__(self, build: Builder, name: str, shape: Shape):
        self.weight = build.parameter(name + ".weight", shape)

    def __call__(self, x: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        mean = mean_last(out)
        variance = mean_last(pow_scalar(sub(out, mean)))
        out = mul(sub(out, mean), rsqrt(add_scalar(variance)))
        out = mul(to(self.weight, dtypes.float32), out)
        return to(out, x.dtype)


def rotate_pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rotary position embedding to neighbouring pairs of queries and keys, [batch, heads, tokens, size]."""
    wide_q = to(q, dtypes.float32)
    wide_k = to(k, dtypes.float32)
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotated_q = add(mul(wide_q, c), mul(_rotate_half(wide_q), s))
    rotated_k = add(mul(wide_k, c), mul(_rotate_half(wide_k), s))
    return to(rotated_q, q.dtype), to(rotated_k, q.dtype)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = every_second(x), every_second(x)
    pairs = stack_last([neg(second), first])
    return reshape(pairs, x.shape)


class SelfAttention:
    def __init__(self, spec: _Spec, build: Builder, rotary: bool):
        size, bias, queries, keys = spec.head_dim, spec.attention_bias, spec.num_attention_heads, spec.num_key_value_heads
        self.head_dim, self.rotary = size, rotary
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries * size, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys * size, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys * size, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries * size, spec.hidden_size, bias)
        self.q_norm = LayerNorm(build, "self_attn.q_norm", (queries, size)) if spec.qk_norm else None
        self.k_norm = LayerNorm(build, "self_attn.k_norm", (keys, size)) if spec.qk_norm else None
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = reshape(self.q_proj(hidden), heads)
        k = reshape(self.k_proj(hidden), heads)
        v = reshape(self.v_proj(hidden), heads)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q = transpose(q, 1, 2)
        k = transpose(k, 1, 2)
        v = transpose(v, 1, 2)
        if self.rotary:
            q, k = rotate_pairs(q, k, cos, sin)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        return self.o_proj(reshape(out, (batch, tokens, -1))), weights


class DecoderLayer:
    def __init__(self, spec: _Spec, build: Builder, kind: LayerType):
        rotary = kind == SLIDING or not isinstance(spec, WindowedSpec)
        self.self_attn = SelfAttention(spec, build, rotary)
        self.mlp = MLP(spec, build)
        self.input_layernorm = LayerNorm(build, "input_layernorm", (spec.hidden_size,))

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        attended, _ = self.self_attn(out, cos, sin, mask)
        fed = self.mlp(out)
        return add(add(residual, attended), fed)


class Cohere:
    """The body of the model."""

    def __init__(self, spec: _Spec, build: Builder):
        self.spec = spec
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(layer_types(spec), lambda kind: DecoderLayer(spec, build, kind))
        self.norm = LayerNorm(build, "norm", (spec.hidden_size,))
        self.buffers = frequencies(build, spec.head_dim)

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        masks = causal_masks(spec, tape, batch, tokens, embeds.dtype, self.attention)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.head_dim, hidden.dtype)
        for kind, layer in self.layers.by_kind():
            hidden = layer(hidden, cos, sin, masks[kind], positions)
        return self.norm(hidden)


class CohereCausalLM(CausalLM):
    """Logits are multiplied by a number."""

    def logits(self, hidden: Tensor) -> Tensor:
        return mul_scalar(super().logits(hidden))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: CohereCausalLM(Cohere(spec, build), spec, build)}
