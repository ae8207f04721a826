"""torch's attention kernels on CUDA: what each keeps for backward.

Shapes are [batch, heads, tokens, head size]. Results are laid out as [batch, tokens, heads, head size]
(aten/src/ATen/native/transformers/cuda/attention.cu).
"""

from __future__ import annotations

from estimator import dtypes
from estimator.tape.autocast import cast
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import normalized
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import dropout, mul_scalar
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import clone, expand, narrow, pad_last, reshape, transpose, unsqueeze


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that never holds the scores; keys and values may have fewer heads.

    Saves q, k, v, its output, a float32 log-sum-exp per query, and the state of the random numbers. Head sizes are padded
    to a multiple of 8 before, and cut after (aten/src/ATen/native/transformers/attention.cpp, `pad_last_dim`).
    """
    size = q.shape[-1]
    q, k, v = (pad_last(cast(t), 8) for t in (q, k, v))
    batch, heads, tokens, _ = q.shape
    out = _fused("flash_attention", (q, k, v), (batch, heads, tokens), (2,))
    return out if out.shape[-1] == size else narrow(out, -1, size)


def efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Memory-efficient attention: as flash, in float32 too, and with a mask, which it takes as numbers of q's type.

    The log-sum-exp is padded to whole blocks of 32 queries, and is not computed where no gradient is wanted.
    """
    q, k, v = cast(q), cast(k), cast(v)
    batch, heads, tokens, _ = q.shape
    if mask is not None:
        mask = empty(q.tape, (batch, 1, tokens, k.shape[2]), q.dtype, "where")
    wanted = q.tape.grad_enabled and (q.requires_grad or k.requires_grad or v.requires_grad)
    padded = -(-tokens // 32) * 32 if wanted else 0
    inputs = (q, k, v) if mask is None else (q, k, v, mask)
    return _fused("efficient_attention", inputs, (batch, heads, padded), ())


def _fused(name: str, inputs: tuple[Tensor, ...], lse: tuple[int, int, int], seed: tuple[int, ...]) -> Tensor:
    """FLOPs are those of the full square of scores, also where half of them are masked, as `FlopCounterMode` counts."""
    q, k = inputs[:2]
    tape, others = q.tape, (None,) * (len(inputs) - 3)
    batch, heads, tokens, size = q.shape
    flops = 4 * batch * heads * tokens * k.shape[2] * size

    def backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> list[Gradient]:
        tape.compute("attention", flops * 5 // 2)  # five products where forward has two
        return [*(_by_token(t, name + "_backward") for t in (q, k, v)), *others]

    node = record(name, inputs, inputs, backward)
    tape.compute("attention", flops)
    out = attach(node, _by_token(q, name), save=True)
    statistics = (
        empty(tape, lse, dtypes.float32, name),
        empty(tape, seed, dtypes.int64, name),
        empty(tape, (), dtypes.int64, name),
    )
    if node is not None:
        node.save(statistics)
    return out


def _by_token(like: Tensor, operation: str) -> Tensor:
    _, heads, tokens, size = like.shape
    strides = (tokens * heads * size, size, heads * size, 1)
    return empty(like.tape, like.shape, like.dtype, operation, normalized(like.shape, strides))


def math(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout_p: float) -> Tensor:
    """The fallback, out of plain operations: it holds and saves the scores of every head.

    aten/src/ATen/native/transformers/attention.cpp, `_scaled_dot_product_attention_math`.
    """
    tokens, length = q.shape[2], k.shape[2]
    scaled = mul_scalar(q)
    if causal:
        mask = _lower_triangle(q, tokens, length)
    keys, values = _repeat_interleave(q, k), _repeat_interleave(q, v)
    weights = matmul(scaled, mul_scalar(transpose(keys, 2, 3)))  # the mask is added in place
    weights = dropout(_safe_softmax(weights), dropout_p)
    out = matmul(weights, values)
    if causal:
        del mask
    return out


def _lower_triangle(q: Tensor, tokens: int, length: int) -> Tensor:
    ones = empty(q.tape, (tokens, length), dtypes.bool_, "ones")
    lower = empty(q.tape, (tokens, length), dtypes.bool_, "tril")
    del ones
    mask = empty(q.tape, (tokens, length), q.dtype, "where")
    del lower
    return mask


def _safe_softmax(x: Tensor) -> Tensor:
    """Softmax that gives zeros for a row of minus infinities (aten/src/ATen/native/SoftMax.cpp). Saves its result."""
    node = record("SafeSoftmaxBackward", (x,), (), lambda g, y: unary("_softmax_backward_data", g))
    out = unary("_softmax", x)
    masked = unary("isneginf", x, dtypes.bool_)
    rows = empty(x.tape, (*x.shape[:-1], 1), dtypes.bool_, "all")  # those are set to zero in place
    del masked, rows
    return attach(node, out, save=True)


def repeat_heads(q: Tensor, x: Tensor) -> Tensor:
    """transformers' `repeat_kv`: each head of `x` for all queries that share it; copied, unless there is only one."""
    return x if q.shape[1] == x.shape[1] else reshape(_for_each_query(q, x), (*x.shape[:1], q.shape[1], *x.shape[2:]))


def _repeat_interleave(q: Tensor, x: Tensor) -> Tensor:
    """The same as torch does it: always copied."""
    return x if q.shape[1] == x.shape[1] else reshape(clone(_for_each_query(q, x)), (*x.shape[:1], q.shape[1], *x.shape[2:]))


def _for_each_query(q: Tensor, x: Tensor) -> Tensor:
    batch, heads, tokens, size = x.shape
    return expand(unsqueeze(x, 2), (batch, heads, q.shape[1] // heads, tokens, size))
