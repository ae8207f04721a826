"""Attention as transformers calls it: by hand (`eager`), through torch's `scaled_dot_product_attention` (`sdpa`), or by
FlashAttention, of whose second release torch has the kernel.

Queries are [batch, heads, tokens, size]; keys and values may have fewer heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.tape import dtypes
from estimator.tape.attention import TRITON, flash
from estimator.tape.flash3 import flash_3
from estimator.tape.math_attention import repeat_heads
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, dropout, mul_scalar, softmax, tanh, to, where
from estimator.tape.sdpa import FLASH_HEAD_SIZE, scaled_dot_product_attention
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, reshape, transpose


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention runs in a model: its implementation, whether its softmax is asked for in float32, and its dropout.

    `softcap`: the scores go through a tanh, and `sdpa` cannot run. `cast_back`: whether the softmax's result is cast to the
    type of the values. `causal`: tokens look back only, also where no mask says so. `efficient`: whether `sdpa` may run the
    memory-efficient kernel.
    """

    implementation: str
    float32_softmax: bool = True
    dropout: float = 0.0
    softcap: bool = False
    cast_back: bool = True
    causal: bool = True
    efficient: bool = True

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None = None,
        unread: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The attention output, [batch, tokens, heads, size], and the weights where the implementation returns them.

        `bias`: learned numbers for each head and pair of positions. `unread`: what it is handed and does not read, which a
        checkpoint of it holds.
        """
        if self.implementation == "eager":
            return self._eager(q, k, v, mask, bias)
        if self.implementation == "flash_attention_3":
            return contiguous(transpose(flash_3(q, k, v, self.causal), 1, 2)), None
        if self.implementation == "flash_attention_triton":
            return contiguous(transpose(flash(q, k, v, self.causal, TRITON), 1, 2)), None
        if bias is not None:
            mask = _position_bias(bias, self.causal)
        return contiguous(transpose(sdpa(q, k, v, mask, self.dropout, self.causal, self.efficient), 1, 2)), None

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


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, efficient: bool = True) -> Tensor:
    """How transformers calls it on CUDA: it asks for grouped heads where there is no mask and flash takes the heads' size
    (integrations/sdpa_attention.py, `use_gqa_in_sdpa`). Elsewhere it copies key heads for all queries, or takes the heads of a
    single query that share keys for that many queries (`pack_gqa`; its masks are the same for all heads)."""
    heads, tokens = q.shape[1], q.shape[2]
    grouped = mask is None and k.shape[3] == v.shape[3] <= FLASH_HEAD_SIZE
    if k.shape[1] != heads and not grouped:
        if tokens == 1:
            q = reshape(q, (q.shape[0], k.shape[1], heads // k.shape[1], q.shape[3]))
        else:
            k, v = repeat_heads(q, k), repeat_heads(q, v)
    causal = causal and mask is None and tokens > 1
    out = scaled_dot_product_attention(q, k, v, mask, dropout_p, causal, grouped, efficient)
    return out if out.shape[1] == heads else reshape(out, (out.shape[0], heads, tokens, out.shape[3]))


def _position_bias(bias: Tensor, causal: bool) -> Tensor:
    """The mask of a position bias (integrations/sdpa_attention.py, `create_position_bias_mask`): each layer copies it."""
    if not causal:
        return contiguous(bias)
    past = empty(bias.tape, (1, 1, *bias.shape[2:]), dtypes.bool_, "ge")
    return contiguous(where(past, bias))


def causal_mask(
    tape: Tape, batch: int, tokens: int, dtype: dtypes.DType, implementation: str, window: int | None
) -> Tensor | None:
    """The mask that transformers builds; [batch or 1, 1, tokens, keys], or None.

    `eager` adds numbers of the model's type; `sdpa` needs a mask, of booleans, only where the keys fill the sliding
    `window`, where keys begin before it, or where the batch is padded or packed; it is a mask of each sequence where the model
    is given one (masking_utils.py, `sdpa_mask`).
    """
    keys = tape.prefix + (tape.generating.length if tape.generating else _reached(tape.past, tokens, window))
    if implementation == "eager":
        return empty(tape, (batch, 1, tokens, keys), dtype, "where")
    if implementation == "sdpa" and (tape.batch_mask != "none" or tape.prefix or (window is not None and keys >= window)):
        return empty(tape, (batch if tape.mask_given else 1, 1, tokens, keys), dtypes.bool_, "bitwise_and")
    return None


def _reached(past: int, tokens: int, window: int | None) -> int:
    """Keys of a pass: those of its tokens, and of the `past` ones that a cache has kept (`DynamicSlidingWindowLayer`)."""
    return tokens + (min(past, window - 1) if window else past)


def bidirectional_mask(
    tape: Tape, batch: int, tokens: int, dtype: dtypes.DType, implementation: str, window: int
) -> Tensor | None:
    """The same for attention in both directions that looks at tokens up to `window` away: None if that is all of them.

    How far each token is from each other is a number of eight bytes, and so is its amount, before it is compared
    (`sliding_window_bidirectional_overlay`).
    """
    if tokens < window:
        return None
    one = [empty(tape, (1,), dtypes.int64, "arange") for _ in ("sequence", "head")]
    places = [empty(tape, (tokens,), dtypes.int64, "arange") for _ in ("queries", "keys")]
    ones = empty(tape, (), dtypes.bool_, "new_ones")
    square = (1, 1, tokens, tokens)
    distance = empty(tape, square, dtypes.int64, "sub")
    amount = empty(tape, square, dtypes.int64, "abs")
    del distance
    near = empty(tape, square, dtypes.bool_, "le")
    del amount
    joined = empty(tape, square, dtypes.bool_, "bitwise_and")
    del near, ones
    mask = causal_mask(tape, batch, tokens, dtype, implementation, window)
    del joined, places, one
    return mask
