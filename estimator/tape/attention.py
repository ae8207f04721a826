"""torch's attention kernels on CUDA that never hold the scores: what each keeps for backward.

Shapes are [batch, heads, tokens, head size]. `flash` and `cudnn` lay their results out as their inputs are; `efficient` lays
them out by token (aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu, cudnn/MHA.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from estimator.tape import dtypes
from estimator.tape.autocast import cast, cast_all
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import Shape, normalized
from estimator.tape.math_attention import numbers
from estimator.tape.pointwise import to
from estimator.tape.selective import made
from estimator.tape.tensor import Tensor, alias, empty, like, output
from estimator.tape.tiles import workspace_numbers
from estimator.tape.views import contiguous, expand, narrow, pad_last, transpose

MASK_ALIGNMENT = 8
"""Elements that a row of a mask is padded to (attention.cpp, `preprocess_mask`)."""
WIDEST_IN_REGISTERS = 128
"""Numbers of a value's head that memory-efficient attention sums in registers (kernel_forward.h, `kKeepOutputInRF`)."""


class Kernel(NamedTuple):
    """One of them. `by_token`: its result is laid out as [batch, tokens, heads, head size]; `gradients_by_token`: and so are
    its gradients. `copies`: backward copies a gradient that is not laid out so. `held`: makes what backward holds beside its
    results."""

    name: str
    by_token: bool
    copies: bool
    held: Callable[[Tensor, Tensor, Tensor], object]
    gradients_by_token: bool


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, kernel: Kernel | None = None) -> Tensor:
    """FlashAttention-2, in half precision; keys and values may have fewer heads.

    Saves q, k, v, its output, a float32 log-sum-exp per query, and the state of the random numbers. Head sizes are padded
    to a multiple of 8 before, and cut after (aten/src/ATen/native/transformers/attention.cpp, `pad_last_dim`). The output is
    laid out as q, each gradient as what it is the gradient of (`empty_like` in cuda/flash_attn/flash_api.cpp).
    """
    size = q.shape[-1]
    q, k, v = cast_all(q, k, v)
    q, k, v = pad_last(q, 8), pad_last(k, 8), pad_last(v, 8)
    out = fused(kernel or FLASH, (q, k, v), q.shape[:3], [(2,), ()], causal=causal)
    return out if out.shape[-1] == size else narrow(out, -1, size)


def cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """cuDNN's attention, in half precision, with or without a mask; keys and values may have fewer heads.

    Saves as flash does, the log-sum-exp only where a gradient is wanted (cudnn/MHA.cpp, `run_cudnn_SDP_fprop`). The mask is
    taken as numbers of q's type (attention.cpp), for which each sequence has its own.
    """
    mask = mask and cast(mask)
    q, k, v = cast_all(q, k, v)
    inputs = (q, k, v) if mask is None else (q, k, v, numbers(mask, q))
    return fused(CUDNN, inputs, q.shape[:3] if _wanted(q, k, v) else None, [(), ()], causal=causal)


def efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Memory-efficient attention: as flash, in float32 too, with values of another head size, and with a mask, which it takes as
    numbers of q's type.

    The log-sum-exp is padded to whole blocks of 32 queries, and is not computed where no gradient is wanted. Rows of the mask
    are padded to a multiple of 8 (aten/src/ATen/native/transformers/attention.cpp, `preprocess_mask`). The state of the random
    numbers lies in the host's memory. Half precision sums wide heads up in float32 (attention.cu, `output_accum`).
    """
    mask = mask and cast(mask)
    q, k, v = cast_all(q, k, v)
    batch, heads, tokens, _ = q.shape
    padded = -(-tokens // 32) * 32 if _wanted(q, k, v) else 0
    inputs = (q, k, v) if mask is None else (q, k, v, _aligned(numbers(mask, q), (batch, heads, tokens, k.shape[2])))
    width = max(q.shape[3], v.shape[3])
    sums = width > WIDEST_IN_REGISTERS and q.dtype is not dtypes.float32
    return fused(EFFICIENT, inputs, (batch, heads, padded), [], sums, causal)


def _wanted(*inputs: Tensor) -> bool:
    return inputs[0].tape.grad_enabled and any(x.requires_grad for x in inputs)


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


def _held_by_flash(q: Tensor, k: Tensor, out: Tensor) -> object:
    """Per row a float32 sum and the query's gradient in float32; where key heads are shared, the gradients of keys and values
    for every query head (flash_attn/flash_api.cpp, `mha_bwd`). The result is copied if it is not laid out by token
    (attention_backward.cu, `_flash_attention_backward`)."""
    batch, heads, tokens, size = q.shape
    rows, step = rounded(tokens, 128), 32 if size <= 128 else 64
    held = [
        contiguous(transpose(out, 1, 2)),
        empty(q.tape, (batch, heads, rows), dtypes.float32, "softmax_d"),
        empty(q.tape, (batch, rows, heads, rounded(size, step)), dtypes.float32, "dq_accum"),
    ]
    return held + _for_each_query(q, k, out)


def _held_by_cudnn(q: Tensor, k: Tensor, out: Tensor) -> object:
    """One block with the same (cudnn_frontend/node/scaled_dot_product_flash_attention.h, `get_fe_workspace_size_node`): the
    query's gradient, and a sum per row. That its plan holds shared heads' gradients, too, is inferred, not read."""
    batch, heads, tokens, size = q.shape
    return [empty(q.tape, (batch, heads, tokens, size + 1), dtypes.float32, "workspace"), *_for_each_query(q, k, out)]


def _for_each_query(q: Tensor, k: Tensor, out: Tensor) -> list[Tensor]:
    """The gradients of keys and values for every query head, where heads are shared."""
    batch, heads, _, size = q.shape
    sizes = (size, out.shape[3]) if k.shape[1] != heads else ()
    return [empty(q.tape, (batch, k.shape[2], heads, width), q.dtype, "expanded") for width in sizes]


def _held_by_efficient(q: Tensor, k: Tensor, out: Tensor) -> object:
    """Per row a float32 sum, which for float32 is made of a whole product; and what the kernel puts aside."""
    batch, heads, tokens, _ = q.shape
    aside, computes = workspace_numbers(
        q.tape.gpu.capability, q.dtype, (batch, heads), (tokens, k.shape[2]), (q.shape[3], out.shape[3])
    )
    delta = empty(q.tape, (batch, heads, tokens), dtypes.float32, "delta") if computes else _delta(out)
    return delta, empty(q.tape, (batch, heads, aside), dtypes.float32, "workspace") if aside else None


def _delta(out: Tensor) -> Tensor:
    """The sum over a head of gradient times result (attention_backward.cu)."""
    batch, heads, tokens, size = out.shape
    wide = [to(out, dtypes.float32), to(out, dtypes.float32)] if out.dtype is not dtypes.float32 else []
    product = output("mul", (out, out), (batch, tokens, heads, size), dtypes.float32)
    summed = empty(out.tape, (batch, tokens, heads), dtypes.float32, "sum")
    delta = empty(out.tape, (batch, heads, tokens), dtypes.float32, "clone") if heads > 1 and tokens > 1 else summed
    del wide, product
    return delta


def rounded(count: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-count // step) * step


FLASH = Kernel("flash_attention", False, True, _held_by_flash, gradients_by_token=False)
CUDNN = Kernel("cudnn_attention", False, False, _held_by_cudnn, gradients_by_token=False)
TRITON = FLASH._replace(name="triton_attention")
"""flash-attn 1's kernel in Triton (flash_attn/flash_attn_triton.py): what it keeps is counted as FLASH's."""
EFFICIENT = Kernel("efficient_attention", True, True, _held_by_efficient, gradients_by_token=True)


def fused(
    kernel: Kernel,
    inputs: tuple[Tensor, ...],
    lse: Shape | None,
    random: Sequence[Shape],
    sums: bool = False,
    causal: bool = False,
) -> Tensor:
    """Run a kernel on q, k, v and perhaps a mask. `lse`: the shape of the log-sum-exp. `random`: the shapes of the random
    numbers' state. `sums`: it sums its result up in float32. `causal`: it leaves out the keys behind each query.

    FLOPs are those of the full square of scores, also where half of them are masked, as `FlopCounterMode` counts.
    """
    q, k, v = inputs[:3]
    tape, name, wanted = q.tape, kernel.name, [mask.requires_grad for mask in inputs[3:]]
    batch, heads, tokens, size = q.shape
    scores, weighted = (2 * batch * heads * tokens * k.shape[2] * width for width in (size, v.shape[3]))
    form = (batch * heads, tokens, k.shape[2], size, int(causal)), q.dtype
    nbytes = q.nbytes + k.nbytes + v.nbytes + batch * heads * tokens * v.shape[3] * q.dtype.itemsize
    new, new_gradient = (_by_token if by_token else like for by_token in (kernel.by_token, kernel.gradients_by_token))

    def backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> list[Gradient]:
        # the scores again, and a product per operand of both products
        tape.compute(name + "_backward", 3 * scores + 2 * weighted, 2 * nbytes, form)
        if kernel.copies:
            g = transpose(contiguous(transpose(g, 1, 2)), 1, 2)
        gradients: list[Gradient] = [new_gradient(name + "_backward", t) for t in (q, k, v)]
        gradients += [_gradient_of_mask(mask) if want else None for mask, want in zip(rest, wanted, strict=False)]
        held = kernel.held(q, k, rest[len(wanted)])
        del held
        return gradients

    def make() -> tuple[Tensor, ...]:
        tape.compute(name, scores + weighted, nbytes, form)
        out = new(name, q) if v.shape[3] == size else _of_size(name, q, v.shape[3], kernel.by_token)
        statistics = [] if lse is None else [empty(tape, lse, dtypes.float32, name)]
        accumulated = empty(tape, out.shape, dtypes.float32, name) if sums else None
        del accumulated
        return out, *statistics, *[empty(tape, shape, dtypes.int64, name) for shape in random]

    node = record(name, inputs, inputs, backward)
    out, *statistics = made(tape, name, make)
    out = attach(node, out, save=True)
    if node is not None:
        node.save(tuple(statistics))
    return out


def _by_token(operation: str, x: Tensor) -> Tensor:
    return _of_size(operation, x, x.shape[3], True)


def _of_size(operation: str, x: Tensor, size: int, by_token: bool) -> Tensor:
    """A tensor of the same shape, but for heads of `size`; laid out by tokens, or in the order of the other's dimensions."""
    shape = (*x.shape[:3], size)
    order = (0, 2, 1, 3) if by_token else sorted(range(4), key=lambda d: -x.element_strides()[d])
    strides, step = [0] * 4, 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return empty(x.tape, shape, x.dtype, operation, normalized(shape, tuple(strides)))
