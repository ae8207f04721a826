"""Operations that change shape: views where torch makes views, copies where it must copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.dtypes import DType, promote
from estimator.tape.layout import Shape, channels_last, is_channels_last, normalized, viewed
from estimator.tape.tensor import Tensor, alias, empty, moved, output, unary


def reshape(x: Tensor, shape: Shape) -> Tensor:
    """`x.reshape(shape)`; one dimension may be -1. A view if the layout allows, else a copy."""
    if -1 in shape:
        known = -prod(shape)
        shape = tuple([x.numel // known if size == -1 else size for size in shape])
    possible, strides = viewed(x.shape, x.strides, shape)
    if not possible:
        x = clone(x)
    before = x.shape
    node = record("ViewBackward", (x,), (), lambda g: reshape(g, before))
    return attach(node, alias(x, shape, strides))


def clone(x: Tensor) -> Tensor:
    """A contiguous copy."""
    return attach(record("CloneBackward", (x,), (), lambda g: g), output("clone", (x,), x.shape, x.dtype))


def contiguous(x: Tensor) -> Tensor:
    """`x` itself if it is contiguous, else a copy."""
    return x if x.strides is None else clone(x)


def transpose(x: Tensor, a: int, b: int) -> Tensor:
    """Swap two dimensions; a view."""
    shape, strides = list(x.shape), list(x.element_strides())
    shape[a], shape[b] = shape[b], shape[a]
    strides[a], strides[b] = strides[b], strides[a]
    node = record("TransposeBackward", (x,), (), lambda g: transpose(g, a, b))
    new = tuple(shape)
    return attach(node, alias(x, new, normalized(new, tuple(strides))))


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The dimensions in another order; a view."""
    strides = x.element_strides()
    shape = tuple([x.shape[dim] for dim in dims])
    back = sorted(range(len(dims)), key=dims.__getitem__)
    node = record("PermuteBackward", (x,), (), lambda g: permute(g, back))
    return attach(node, alias(x, shape, normalized(shape, tuple([strides[dim] for dim in dims]))))


def expand(x: Tensor, shape: Shape) -> Tensor:
    """Broadcast to `shape` without a copy. (The engine sums the gradient to the shape of `x`.)"""
    own, offset = x.element_strides(), len(shape) - len(x.shape)
    kept = [0 if x.shape[i] == 1 and shape[i + offset] != 1 else stride for i, stride in enumerate(own)]
    node = record("ExpandBackward", (x,), (), lambda g: g)
    return attach(node, alias(x, shape, normalized(shape, (*[0] * offset, *kept))))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Insert a dimension of one element; a view."""
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    before = x.shape
    node = record("UnsqueezeBackward", (x,), (), lambda g: reshape(g, before))
    return attach(node, alias(x, shape, viewed(x.shape, x.strides, shape)[1]))


def narrow(x: Tensor, dim: int, size: int) -> Tensor:
    """`size` consecutive elements of a dimension; a view. Its gradient is zeros of the full shape, filled in part.

    All elements are no slice to Python's indexing but an alias (aten/src/ATen/TensorIndexing.h, `applySlice`).
    """
    before = x.shape
    if before[dim] == size:
        return attach(record("AliasBackward", (x,), (), lambda g: g), alias(x, before, x.strides))
    shape = list(before)
    shape[dim] = size
    node = record("SliceBackward", (x,), (), lambda g: output("slice_backward", (g,), before, g.dtype))
    return attach(node, _part(x, tuple(shape)))


def every_second(x: Tensor) -> Tensor:
    """`x[..., ::2]`, or with an offset of one; a view. Its gradient is as that of `narrow`."""
    before = x.shape
    node = record("SliceBackward", (x,), (), lambda g: output("slice_backward", (g,), before, g.dtype))
    *strides, last = x.element_strides()
    shape = (*before[:-1], before[-1] // 2)
    return attach(node, alias(x, shape, normalized(shape, (*strides, 2 * last))))


def stack_last(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors along a new last dimension, in a new one; their gradients are views of its gradient."""
    before, count = parts[0].shape, len(parts)

    def backward(g: Tensor) -> list[Gradient]:
        return [alias(g, before, normalized(before, g.element_strides()[:-1])) for _ in range(count)]

    node = record("StackBackward", parts, (), backward)
    return attach(node, output("stack", parts, (*before, count), parts[0].dtype))


def stack_first(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors along a new first dimension, in a new one; their gradients are views of its gradient."""
    before, count = parts[0].shape, len(parts)
    node = record("StackBackward", parts, (), lambda g: [alias(g, before) for _ in range(count)])
    return attach(node, empty(parts[0].tape, (count, *before), parts[0].dtype, "stack"))


def select(x: Tensor, dim: int) -> Tensor:
    """One index of a dimension, which goes; a view. Its gradient is zeros of the full shape, filled in part."""
    before, strides = x.shape, x.element_strides()
    shape = (*before[:dim], *before[dim + 1 :])
    node = record("SelectBackward", (x,), (), lambda g: output("select_backward", (g,), before, g.dtype))
    return attach(node, alias(x, shape, normalized(shape, (*strides[:dim], *strides[dim + 1 :]))))


def unbind(x: Tensor, dim: int) -> list[Tensor]:
    """The elements of a dimension, as views. Their gradients (zeros for one that has none) are stacked in a new tensor."""
    before = x.shape
    shape, strides = (*before[:dim], *before[dim + 1 :]), x.element_strides()
    part = normalized(shape, (*strides[:dim], *strides[dim + 1 :]))

    def backward(*gradients: Gradient) -> Tensor:
        like = next(g for g in gradients if g is not None)
        parts = [empty(like.tape, shape, like.dtype, "zeros") if g is None else g for g in gradients]
        del gradients
        out = output("stack", parts, before, like.dtype)
        del parts
        return out

    node = record("UnbindBackward", (x,), (), backward, outputs=before[dim])
    outs = [attach(node, alias(x, shape, part)) for _ in range(before[dim])]
    for i, out in enumerate(outs):
        out.output_nr = i
    return outs


def pad(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Zeros at both ends of a dimension; a copy even where there are none. The gradient is cut again.

    Where the layout happens to be that of an image with its channels innermost, the result has that, too.
    """
    shape, size = list(x.shape), x.shape[dim]
    shape[dim] += before + after
    node = record("ConstantPadNdBackward", (x,), (), lambda g: unary("constant_pad_nd", narrow(g, dim, size)))
    if not before + after:
        return attach(node, unary("constant_pad_nd", x))
    padded = tuple(shape)
    strides = channels_last(padded) if is_channels_last(x.shape, x.strides) else None
    return attach(node, output("constant_pad_nd", (x,), padded, x.dtype, strides))


def pad_last(x: Tensor, multiple: int) -> Tensor:
    """Zeros at the end of the last dimension, up to a multiple; `x` itself if it is one. The gradient is cut again."""
    size = x.shape[-1]
    missing = -size % multiple
    if not missing:
        return x
    node = record("ConstantPadNdBackward", (x,), (), lambda g: clone(narrow(g, -1, size)))
    return attach(node, output("constant_pad_nd", (x,), (*x.shape[:-1], size + missing), x.dtype))


def index(x: Tensor, indices: Sequence[Tensor], shape: Shape) -> Tensor:
    """`x[indices]` for tensors of integers: a copy of `shape`. Saves the indices; the gradient is zeros, filled in part."""
    before = x.shape
    node = record("IndexBackward", (x,), tuple(indices), lambda g, *_: output("new_zeros", (g,), before, g.dtype))
    return attach(node, _gathered("index", x, shape))


def _gathered(operation: str, x: Tensor, shape: Shape) -> Tensor:
    """Some elements of `x`: as many are read as are written."""
    out = empty(x.tape, shape, x.dtype, operation)
    moved(operation, out, out)
    return out


def split(x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """Views of consecutive parts. Their gradients (zeros for a part that has none) are joined in one new tensor."""
    before = x.shape
    shapes = [tuple([size if i == dim else full for i, full in enumerate(before)]) for size in sizes]

    def backward(*gradients: Gradient) -> Tensor:
        like = next(g for g in gradients if g is not None)
        parts = [empty(like.tape, s, like.dtype, "zeros") if g is None else g for s, g in zip(shapes, gradients, strict=True)]
        return cat(parts, dim)

    node = record("SplitBackward", (x,), (), backward, outputs=len(sizes))
    outs = [attach(node, _part(x, shape)) for shape in shapes]
    for i, out in enumerate(outs):
        out.output_nr = i
    return outs


def halves(x: Tensor) -> list[Tensor]:
    """The first and the last half of the first dimension (`x.chunk(2)`)."""
    half = x.shape[0] // 2
    return split(x, (half, half), 0)


def cat(parts: Sequence[Tensor], dim: int, least: DType | None = None) -> Tensor:
    """Join tensors in a new one, of the widest of their types and `least`; their gradients are views of its gradient."""
    shape = list(parts[0].shape)
    sizes = [part.shape[dim] for part in parts]
    shape[dim] = sum(sizes)
    node = record("CatBackward", parts, (), lambda g: [narrow(g, dim, size) for size in sizes])
    dtype = reduce(promote, [part.dtype for part in parts] + ([] if least is None else [least]))
    return attach(node, output("cat", parts, tuple(shape), dtype))


def write_part(whole: Tensor, part: Tensor) -> Tensor:
    """Write consecutive elements of the last dimension, in the type of `whole`: `whole[..., a:b].copy_(part)`.

    torch/csrc/autograd/functions/tensor.cpp, `CopySlices` and `CopyBackwards`: the gradient is copied as a whole, and its part
    cloned; what `whole` was before gets zeros there.
    """
    before, inner = whole.requires_grad, part.requires_grad
    source = part.dtype

    def backward(g: Tensor) -> tuple[Gradient, Gradient]:
        result = output("new_empty_strided", (g,), g.shape, g.dtype)
        cloned = empty(g.tape, part_shape, g.dtype, "clone")
        zeros = empty(g.tape, part_shape, g.dtype, "zeros_like") if before else None
        converted = empty(g.tape, part_shape, source, "_to_copy") if inner and source is not g.dtype else cloned
        del zeros
        return result if before else None, converted if inner else None

    part_shape = part.shape
    return attach(record("CopySlices", (whole, part), (), backward), whole.detach())


def add_within_(base: Tensor, view: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """`view(base) += b`, where `base` is no view: `base` as it is then. Its gradient is copied, and of that the view, for b.

    torch/csrc/autograd/functions/tensor.cpp, `CopySlices`.
    """
    shape, wanted = base.shape, (base.requires_grad, b.requires_grad)

    def backward(g: Tensor) -> tuple[Gradient, Gradient]:
        whole = output("new_empty_strided", (g,), shape, g.dtype)
        part = unary("clone", view(whole))
        return (whole if wanted[0] else None), (part if wanted[1] else None)

    moved("add_", base, b, base)
    return attach(record("CopySlices", (base, b), (), backward), base.detach())


def _part(x: Tensor, shape: Shape) -> Tensor:
    return alias(x, shape, normalized(shape, x.element_strides()))


def repeat(x: Tensor, times: int, dim: int = 0) -> Tensor:
    """A dimension so many times, always copied (`x.repeat(1, times, ...)`). The gradient is summed, unless once."""
    before, size, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]

    def backward(g: Tensor) -> Tensor:
        return g if times == 1 else _summed(reshape(g, (*before, times, size, *after)), (*before, size, *after))

    out = output("repeat", (x,), (*before, times * size, *after), x.dtype)
    return attach(record("RepeatBackward", (x,), (), backward), out)


def _summed(g: Tensor, shape: Shape) -> Tensor:
    return output("sum", (g,), shape, g.dtype)
