"""Falcon's attention: one fused projection, split in one of three ways, and torch's attention called without transformers'
interface, always with a mask.

After transformers' modeling_falcon.py (5.23), `FalconAttention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.families.build import Builder
from estimator.families.modules import rotate
from estimator.tape import dtypes
from estimator.tape.matmul import matmul, times_transposed
from estimator.tape.pointwise import add, dropout, mul_scalar_, softmax, to
from estimator.tape.sdpa import scaled_dot_product_attention
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import expand, index, narrow, reshape, select, transpose

if TYPE_CHECKING:
    from estimator.families.falcon import FalconSpec


class FalconLinear:
    """A product, and a sum for the bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        out = times_transposed(x, self.weight)
        return out if self.bias is None else add(out, self.bias)


class FalconAttention:
    def __init__(self, spec: FalconSpec, build: Builder):
        size, heads = spec.hidden_size, spec.num_attention_heads
        self.heads, self.head_dim = heads, spec.head_dim
        self.grouped, self.one_key_head = spec.new_decoder_architecture, spec.multi_query
        self.groups = 1 if spec.multi_query and not spec.new_decoder_architecture else spec.num_key_value_heads
        fused = size + 2 * self.groups * spec.head_dim
        self.query_key_value = build.linear("self_attention.query_key_value", size, fused, spec.bias, FalconLinear)
        self.dense = build.linear("self_attention.dense", size, size, spec.bias, FalconLinear)
        self.eager = build.attention == "eager"
        self.dropout = spec.attention_dropout if build.training else 0.0

    def __call__(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, alibi: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        fused = self.query_key_value(hidden)
        q, k, v = self._split_heads(fused)
        q, k, v = transpose(q, 1, 2), transpose(k, 1, 2), transpose(v, 1, 2)
        if alibi is None:
            q, k = rotate(q, k, cos, sin)
        weights: Tensor | None = None
        steps: list[Tensor] = []
        if mask is None or not self.eager:
            dropped = self.dropout if alibi is not None else 0.0
            out = scaled_dot_product_attention(q, k, v, mask, dropped, causal=mask is None and tokens > 1)
        elif alibi is None:
            weights = mul_scalar_(matmul(q, transpose(k, 2, 3)))
            weights = softmax(add(weights, mask), hidden.dtype)
            out = matmul(weights, v)
        else:
            weights, *steps = self._weights_with_alibi(q, k, mask, alibi, hidden.dtype)
            out = matmul(weights, v)
        out = reshape(transpose(out, 1, 2), (batch, tokens, size))
        out = self.dense(out)
        del steps
        return out, weights

    def _weights_with_alibi(self, q: Tensor, k: Tensor, mask: Tensor, alibi: Tensor, dtype: dtypes.DType) -> tuple[Tensor, ...]:
        """The weights, and the steps to them, which forward holds to its end."""
        scores = matmul(q, transpose(k, 2, 3))
        wide = to(scores, dtypes.float32)
        logits = mul_scalar_(add(wide, alibi))
        weights = softmax(add(logits, mask), dtype)
        weights = dropout(weights, self.dropout)
        return weights, scores, wide, logits

    def _split_heads(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [batch, tokens, heads, size]: in the 40B every query gets a copy of its group's key."""
        batch, tokens, _ = fused.shape
        if self.grouped:
            each = self.heads // self.groups
            parts = reshape(fused, (batch, tokens, self.groups, each + 2, self.head_dim))
            q, k, v = narrow(parts, 3, each), _picked(parts, 3), _picked(parts, 3)
            k, v = expand(k, q.shape), expand(v, q.shape)
            heads = (batch, tokens, self.heads, self.head_dim)
            return reshape(q, heads), reshape(k, heads), reshape(v, heads)
        if self.one_key_head:
            parts = reshape(fused, (batch, tokens, self.heads + 2, self.head_dim))
            return narrow(parts, 2, self.heads), _picked(parts, 2), _picked(parts, 2)
        parts = reshape(fused, (batch, tokens, self.heads, 3, self.head_dim))
        return select(parts, 3), select(parts, 3), select(parts, 3)


def _picked(x: Tensor, dim: int) -> Tensor:
    """One element of a dimension, picked by a list and so copied."""
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    return index(x, (empty(x.tape, (1,), dtypes.int64, "index"),), shape)
