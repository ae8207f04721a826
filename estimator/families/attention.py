"""Attention as transformers calls it: by hand (`eager`) or through torch's `scaled_dot_product_attention` (`sdpa`).

Queries are [batch, heads, tokens, size]; keys and values may have fewer heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator import dtypes
from estimator.tape.attention import efficient, flash, math, repeat_heads
from estimator.tape.autocast import cast
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, dropout, mul_scalar, softmax, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, transpose

FLASH_HEAD_SIZE = 256
"""Largest head that CUDA's flash kernel takes (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention runs in a model: its implementation, whether its softmax is asked for in float32, and its dropout."""

    implementation: str
    float32_softmax: bool = True
    dropout: float = 0.0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The attention output, [batch, tokens, heads, size], and the weights where the implementation returns them."""
        if self.implementation == "eager":
            return self._eager(q, k, v, mask)
        return contiguous(transpose(_sdpa(q, k, v, mask, self.dropout), 1, 2)), None

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, values = repeat_heads(q, k), repeat_heads(q, v)
        weights = mul_scalar(matmul(q, transpose(keys, 2, 3)))
        if mask is not None:
            weights = add(weights, mask)
        if self.float32_softmax:
            weights = to(softmax(weights, dtypes.float32), q.dtype)
        else:
            weights = softmax(weights)
            weights = to(weights, v.dtype)
        weights = dropout(weights, self.dropout)
        out = matmul(weights, values)
        out = transpose(out, 1, 2)
        return (contiguous(out) if self.float32_softmax else out), weights


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """The kernel that torch 2.13 takes on CUDA.

    Half precision without a mask runs in flash, which reads fewer key heads as they are. transformers asks for grouped
    heads whenever there is no mask; then float32, which flash refuses, falls to the math kernel with all its scores,
    since only flash and math take grouped heads (docstring of `scaled_dot_product_attention`).
    """
    if mask is None and q.shape[3] <= FLASH_HEAD_SIZE:
        if cast(q).dtype is not dtypes.float32:
            return flash(q, k, v)
        if k.shape[1] != q.shape[1]:
            return math(q, k, v, q.shape[2] > 1, dropout_p)
    return efficient(q, repeat_heads(q, k), repeat_heads(q, v), mask)


def runs_on_math(grouped: bool, compute: dtypes.DType, mask: bool, head_size: int) -> bool:
    """Whether `sdpa` would fall to the math kernel, which deserves a warning."""
    return grouped and compute is dtypes.float32 and not mask and head_size <= FLASH_HEAD_SIZE


def causal_mask(
    tape: Tape, batch: int, tokens: int, dtype: dtypes.DType, implementation: str, window: int | None
) -> Tensor | None:
    """The mask that transformers builds for a batch without padding; [batch or 1, 1, tokens, tokens], or None.

    `eager` adds numbers of the model's type; `sdpa` needs a mask, of booleans, only where the sequence outgrows the
    sliding `window`.
    """
    if implementation == "eager":
        return empty(tape, (batch, 1, tokens, tokens), dtype, "where")
    if implementation == "sdpa" and window is not None and tokens >= window:
        return empty(tape, (1, 1, tokens, tokens), dtypes.bool_, "bitwise_and")
    return None
