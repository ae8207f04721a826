"""Attention as transformers calls it: by hand (`eager`) or through torch's `scaled_dot_product_attention` (`sdpa`).

Queries are [batch, heads, tokens, size]; keys and values may have fewer heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator import dtypes
from estimator.tape.attention import efficient, flash, math, repeat_heads
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, dropout, mul_scalar, softmax, tanh, to, where
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, transpose

FLASH_HEAD_SIZE = 256
"""Largest head that CUDA's flash kernel takes (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""

MATH = "sdpa falls to the math kernel for grouped key heads in float32 and holds every score; in bf16 it does not"
MASKED = "the model needs an attention mask at this length, and a mask keeps sdpa from flash attention"


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention runs in a model: its implementation, whether its softmax is asked for in float32, and its dropout.

    `softcap`: the scores go through a tanh, and `sdpa` cannot run. `cast_back`: whether the softmax's result is cast to the
    type of the values.
    """

    implementation: str
    float32_softmax: bool = True
    dropout: float = 0.0
    softcap: bool = False
    cast_back: bool = True

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The attention output, [batch, tokens, heads, size], and the weights where the implementation returns them.

        `bias`: learned numbers for each head and pair of positions; they are `causal` where no mask says so.
        """
        if self.implementation == "eager":
            return self._eager(q, k, v, mask, bias)
        if bias is not None:
            mask = _position_bias(bias, causal)
        return contiguous(transpose(sdpa(q, k, v, mask, self.dropout), 1, 2)), None

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, values = repeat_heads(q, k), repeat_heads(q, v)
        weights = mul_scalar(matmul(q, transpose(keys, 2, 3)))
        if self.softcap:
            weights = mul_scalar(weights)
            weights = tanh(weights)
            weights = mul_scalar(weights)
        if bias is not None:
            weights = add(weights, bias)
        if mask is not None:
            weights = add(weights, mask)
        if self.float32_softmax:
            weights = to(softmax(weights, dtypes.float32), q.dtype)
        else:
            weights = softmax(weights)
            if self.cast_back:
                weights = to(weights, v.dtype)
        weights = dropout(weights, self.dropout)
        out = matmul(weights, values)
        out = transpose(out, 1, 2)
        return (contiguous(out) if self.float32_softmax or not self.cast_back else out), weights


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """The kernel that torch 2.13 takes on CUDA.

    Half precision without a mask runs in flash, which reads fewer key heads as they are. transformers asks for grouped
    heads whenever there is no mask; then float32, which flash refuses, falls to the math kernel with all its scores,
    since only flash and math take grouped heads (docstring of `scaled_dot_product_attention`). Flash refuses values whose heads
    have another size (sdp_utils.cpp, `check_head_dim_size_flash`), and transformers then asks for no grouped heads.
    """
    if mask is None and q.shape[3] == v.shape[3] <= FLASH_HEAD_SIZE:
        if q.dtype is not dtypes.float32 or q.tape.autocast is not None:
            return flash(q, k, v)
        if k.shape[1] != q.shape[1]:
            q.tape.remarks[MATH] = None
            return math(q, k, v, None, q.shape[2] > 1, dropout_p)
    if mask is not None:
        q.tape.remarks[MASKED] = None
    k = repeat_heads(q, k)
    v = repeat_heads(q, v)
    return efficient(q, k, v, mask)


def _position_bias(bias: Tensor, causal: bool) -> Tensor:
    """The mask of a position bias (integrations/sdpa_attention.py, `create_position_bias_mask`): each layer copies it."""
    if not causal:
        return contiguous(bias)
    past = empty(bias.tape, (1, 1, *bias.shape[2:]), dtypes.bool_, "ge")
    return contiguous(where(past, bias))


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


def bidirectional_mask(
    tape: Tape, batch: int, tokens: int, dtype: dtypes.DType, implementation: str, window: int
) -> Tensor | None:
    """The same for attention in both directions that looks at tokens up to `window` away: None if that is all of them."""
    return None if tokens < window else causal_mask(tape, batch, tokens, dtype, implementation, window)
