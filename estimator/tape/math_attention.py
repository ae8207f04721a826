"""The fallback of torch's `scaled_dot_product_attention`, out of plain operations (attention.cpp).

Shapes are [batch, heads, tokens, head size].
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autocast import cast, paused
from estimator.tape.autograd import attach, record
from estimator.tape.layout import Shape
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, add_, dropout, mul_scalar, to
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import clone, expand, reshape, transpose, unsqueeze


def math(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout_p: float, grouped: bool = True) -> Tensor:
    """The fallback, out of plain operations in float32: it holds and saves the scores of every head.

    aten/src/ATen/native/transformers/attention.cpp, `_scaled_dot_product_attention_math`. Half precision is converted first.
    Fewer key heads are copied for all queries where heads are `grouped`, else broadcast by the products.
    """
    mask = mask and cast(mask)
    v, k, q = cast(v), cast(k), cast(q)
    with paused(q.tape):
        return _math(q, k, v, mask and numbers(mask, q), causal, dropout_p, grouped)


def _math(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout_p: float, grouped: bool) -> Tensor:
    dtype = q.dtype
    tokens, length = q.shape[2], k.shape[2]
    wide_q, wide_k, wide_v = to(q, dtypes.float32), to(k, dtypes.float32), to(v, dtypes.float32)
    scaled = mul_scalar(wide_q)
    if causal:
        mask = _lower_triangle(scaled, tokens, length)
    keys, values = (_repeat_interleave(q, wide_k), _repeat_interleave(q, wide_v)) if grouped else (wide_k, wide_v)
    weights = matmul(scaled, mul_scalar(transpose(keys, 2, 3)))
    if mask is not None:  # in place, but not while a dispatch mode is active, as those of selective checkpointing are
        weights = (add_ if q.tape.selection is None else add)(weights, mask)
    weights = _safe_softmax(weights)
    weights = dropout(weights, dropout_p)
    returned = to(weights, dtype)
    out = to(matmul(weights, values), dtype)
    del returned, mask, wide_q
    return out


def numbers(mask: Tensor, q: Tensor) -> Tensor:
    """A mask as numbers of q's type; of booleans they are made for each sequence (attention.cpp, `convert_boolean_attn_mask`)."""
    if mask.dtype is not dtypes.bool_:
        return mask
    return _zero_or_less(q, (q.shape[0], *mask.shape[1:]))


def _lower_triangle(q: Tensor, tokens: int, length: int) -> Tensor:
    ones = empty(q.tape, (tokens, length), dtypes.bool_, "ones")
    lower = empty(q.tape, (tokens, length), dtypes.bool_, "tril")
    del ones
    return _zero_or_less(q, lower.shape)


def _zero_or_less(q: Tensor, shape: Shape) -> Tensor:
    """What is added to scores instead of a mask of booleans: zero, or minus infinity, each of them a tensor (`where`)."""
    numbers = [empty(q.tape, (), q.dtype, "scalar_tensor") for _ in range(2)]
    mask = empty(q.tape, shape, q.dtype, "where")
    del numbers
    return mask


def _safe_softmax(x: Tensor) -> Tensor:
    """Softmax that gives zeros for a row of minus infinities (aten/src/ATen/native/SoftMax.cpp). Saves its result."""
    node = record("SafeSoftmaxBackward", (x,), (), lambda g, y: unary("_softmax_backward_data", g))
    out = unary("_softmax", x)
    masked = unary("isneginf", x, dtypes.bool_)
    rows = empty(x.tape, (*x.shape[:-1], 1), dtypes.bool_, "all")
    zero = empty(x.tape, (), x.dtype, "scalar_tensor")  # those rows are set to it in place
    del masked, rows, zero
    return attach(node, out, save=True)


def repeat_heads(q: Tensor, x: Tensor) -> Tensor:
    """transformers' `repeat_kv`: each head of `x` for all queries that share it; copied, unless there is only one."""
    return x if q.shape[1] == x.shape[1] else reshape(_for_each_query(q, x), (*x.shape[:1], q.shape[1], *x.shape[2:]))


def _repeat_interleave(q: Tensor, x: Tensor) -> Tensor:
    """torch's `repeat_interleave`: each head of `x` for all queries that share it, always copied."""
    return x if q.shape[1] == x.shape[1] else reshape(clone(_for_each_query(q, x)), (*x.shape[:1], q.shape[1], *x.shape[2:]))


def _for_each_query(q: Tensor, x: Tensor) -> Tensor:
    batch, heads, tokens, size = x.shape
    return expand(unsqueeze(x, 2), (batch, heads, q.shape[1] // heads, tokens, size))
