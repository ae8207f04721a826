"""torch's attention kernels on CUDA: what each keeps for backward.

Shapes are [batch, heads, tokens, head size]. Flash attention lays its results out as its inputs are; memory-efficient
attention as [batch, tokens, heads, head size] (aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu).
"""

from __future__ import annotations

from collections.abc import Callable

from estimator import dtypes
from estimator.tape.autocast import cast, cast_all, paused
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import Shape, normalized
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import dropout, mul_scalar, to
from estimator.tape.tensor import Tensor, alias, empty, unary
from estimator.tape.views import clone, contiguous, expand, narrow, pad_last, reshape, transpose, unsqueeze

MASK_ALIGNMENT = 8
"""Elements that a row of a mask is padded to (attention.cpp, `preprocess_mask`)."""


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that never holds the scores; keys and values may have fewer heads.

    Saves q, k, v, its output, a float32 log-sum-exp per query, and the state of the random numbers. Head sizes are padded
    to a multiple of 8 before, and cut after (aten/src/ATen/native/transformers/attention.cpp, `pad_last_dim`). The output is
    laid out as q, each gradient as what it is the gradient of (`empty_like` in cuda/flash_attn/flash_api.cpp).
    """
    size = q.shape[-1]
    q, k, v = cast_all(q, k, v)
    q, k, v = pad_last(q, 8), pad_last(k, 8), pad_last(v, 8)
    batch, heads, tokens, _ = q.shape
    out = _fused("flash_attention", (q, k, v), (batch, heads, tokens), (2,), _alike, _flash_workspaces)
    return out if out.shape[-1] == size else narrow(out, -1, size)


def efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Memory-efficient attention: as flash, in float32 too, with values of another head size, and with a mask, which it takes as
    numbers of q's type.

    The log-sum-exp is padded to whole blocks of 32 queries, and is not computed where no gradient is wanted. Rows of the mask
    are padded to a multiple of 8 (aten/src/ATen/native/transformers/attention.cpp, `preprocess_mask`).
    """
    mask = mask and cast(mask)
    q, k, v = cast_all(q, k, v)
    batch, heads, tokens, _ = q.shape
    wanted = q.tape.grad_enabled and (q.requires_grad or k.requires_grad or v.requires_grad)
    padded = -(-tokens // 32) * 32 if wanted else 0
    inputs = (q, k, v) if mask is None else (q, k, v, _aligned(_numbers(mask, q), (batch, heads, tokens, k.shape[2])))
    return _fused("efficient_attention", inputs, (batch, heads, padded), (), _by_token, _efficient_workspaces)


def _numbers(mask: Tensor, q: Tensor) -> Tensor:
    """A mask as numbers of q's type; of booleans they are made for each sequence (attention.cpp, `convert_boolean_attn_mask`)."""
    if mask.dtype is not dtypes.bool_:
        return mask
    return _zero_or_less(q, (q.shape[0], *mask.shape[1:]))


def _aligned(mask: Tensor, shape: Shape) -> Tensor:
    """A mask for all sequences and heads, or a part of a padded copy of it (attention.cpp, `pad_bias`)."""
    if shape[-1] % MASK_ALIGNMENT:
        mask = narrow(pad_last(mask, MASK_ALIGNMENT), -1, shape[-1])
    return expand(mask, shape)


def _gradient_of_mask(mask: Tensor) -> Tensor:
    """Its rows are whole 16 numbers (attention_backward.cu, `_efficient_attention_backward`)."""
    *outer, length = mask.shape
    whole = empty(mask.tape, (*outer, -(-length // 16) * 16), mask.dtype, "efficient_attention_backward")
    return alias(whole, mask.shape, normalized(mask.shape, whole.element_strides()))


def _flash_workspaces(q: Tensor, k: Tensor, out: Tensor) -> list[Tensor]:
    """What flash holds while it computes gradients: per row a float32 sum and the query's gradient in float32; and where
    key heads are shared, the gradients of keys and values for every query head (flash_attn/flash_api.cpp, `mha_bwd`). The
    result is copied if it is not laid out by token (attention_backward.cu, `_flash_attention_backward`)."""
    batch, heads, tokens, size = q.shape
    rows, step = _rounded(tokens, 128), 32 if size <= 128 else 64
    held = [
        contiguous(transpose(out, 1, 2)),
        empty(q.tape, (batch, heads, rows), dtypes.float32, "softmax_d"),
        empty(q.tape, (batch, rows, heads, _rounded(size, step)), dtypes.float32, "dq_accum"),
    ]
    if k.shape[1] != heads:
        held += [empty(q.tape, (batch, k.shape[2], heads, size), q.dtype, name) for name in ("dk_expanded", "dv_expanded")]
    return held


def _efficient_workspaces(q: Tensor, k: Tensor, out: Tensor) -> list[Tensor]:
    """The same for the memory-efficient kernel: per row a float32 sum, which for float32 is made of a whole product; in half
    precision the query's gradient in float32, by blocks (transformers/cuda/attention_backward.cu and
    mem_eff_attention/kernel_backward.h, `workspace_size`; heads of up to 128 on compute capability 8.0 and above)."""
    batch, heads, tokens, size = q.shape
    if q.dtype is dtypes.float32:
        product = empty(q.tape, (batch, tokens, heads, out.shape[3]), dtypes.float32, "mul")
        summed = empty(q.tape, (batch, tokens, heads), dtypes.float32, "sum")
        del product
        return [empty(q.tape, (batch, heads, tokens), dtypes.float32, "clone")] if heads > 1 else [summed]
    block = 64 if size <= 64 else 128
    tiles = -(-tokens // block) * -(-size // 64)
    return [
        empty(q.tape, (batch, heads, tokens), dtypes.float32, "delta"),
        empty(q.tape, (batch, heads, tiles, block * 64 + 4), dtypes.float32, "workspace"),
    ]


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def _fused(
    name: str,
    inputs: tuple[Tensor, ...],
    lse: tuple[int, int, int],
    seed: tuple[int, ...],
    new: Callable[[Tensor, str], Tensor],
    workspaces: Callable[[Tensor, Tensor, Tensor], list[Tensor]],
) -> Tensor:
    """A kernel in which `new` makes a result like one of the inputs, and `workspaces` what backward holds beside its results.

    FLOPs are those of the full square of scores, also where half of them are masked, as `FlopCounterMode` counts.
    """
    q, k, v = inputs[:3]
    tape, wanted = q.tape, [mask.requires_grad for mask in inputs[3:]]
    batch, heads, tokens, size = q.shape
    scores, weighted = (2 * batch * heads * tokens * k.shape[2] * width for width in (size, v.shape[3]))

    def backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> list[Gradient]:
        tape.compute("attention", 3 * scores + 2 * weighted)  # the scores again, and a product per operand of both products
        g = transpose(contiguous(transpose(g, 1, 2)), 1, 2)
        gradients: list[Gradient] = [new(t, name + "_backward") for t in (q, k, v)]
        gradients += [_gradient_of_mask(mask) if want else None for mask, want in zip(rest, wanted, strict=False)]
        held = workspaces(q, k, rest[len(wanted)])
        del held
        return gradients

    node = record(name, inputs, inputs, backward)
    tape.compute("attention", scores + weighted)
    out = attach(node, new(q, name) if v.shape[3] == size else _by_token(q, name, v.shape[3]), save=True)
    statistics = (
        empty(tape, lse, dtypes.float32, name),
        empty(tape, seed, dtypes.int64, name),
        empty(tape, (), dtypes.int64, name),
    )
    if node is not None:
        node.save(statistics)
    return out


def _alike(like: Tensor, operation: str) -> Tensor:
    return unary(operation, like)


def _by_token(like: Tensor, operation: str, size: int = 0) -> Tensor:
    """A tensor of the same shape, but for heads of another `size`, laid out by tokens."""
    batch, heads, tokens, own = like.shape
    size = size or own
    shape = (batch, heads, tokens, size)
    return empty(like.tape, shape, like.dtype, operation, normalized(shape, (tokens * heads * size, size, heads * size, 1)))


def math(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout_p: float, grouped: bool = True) -> Tensor:
    """The fallback, out of plain operations in float32: it holds and saves the scores of every head.

    aten/src/ATen/native/transformers/attention.cpp, `_scaled_dot_product_attention_math`. Half precision is converted first.
    Fewer key heads are copied for all queries where heads are `grouped`, else broadcast by the products.
    """
    mask = mask and cast(mask)
    v, k, q = cast(v), cast(k), cast(q)
    with paused(q.tape):
        return _math(q, k, v, mask and _numbers(mask, q), causal, dropout_p, grouped)


def _math(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout_p: float, grouped: bool) -> Tensor:
    dtype = q.dtype
    tokens, length = q.shape[2], k.shape[2]
    wide_q, wide_k, wide_v = to(q, dtypes.float32), to(k, dtypes.float32), to(v, dtypes.float32)
    scaled = mul_scalar(wide_q)
    if causal:
        mask = _lower_triangle(scaled, tokens, length)
    keys, values = (_repeat_interleave(q, wide_k), _repeat_interleave(q, wide_v)) if grouped else (wide_k, wide_v)
    weights = matmul(scaled, mul_scalar(transpose(keys, 2, 3)))  # the mask is added in place
    weights = _safe_softmax(weights)
    weights = dropout(weights, dropout_p)
    returned = to(weights, dtype)
    out = to(matmul(weights, values), dtype)
    del returned, mask, wide_q
    return out


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
    """The same as torch does it: always copied."""
    return x if q.shape[1] == x.shape[1] else reshape(clone(_for_each_query(q, x)), (*x.shape[:1], q.shape[1], *x.shape[2:]))


def _for_each_query(q: Tensor, x: Tensor) -> Tensor:
    batch, heads, tokens, size = x.shape
    return expand(unsqueeze(x, 2), (batch, heads, q.shape[1] // heads, tokens, size))
