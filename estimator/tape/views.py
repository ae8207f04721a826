"""Operations that change shape: views where torch makes views, copies where it must copy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import Shape, normalized, viewed
from estimator.tape.tensor import Tensor, alias, empty


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
    return attach(record("CloneBackward", (x,), (), lambda g: g), empty(x.tape, x.shape, x.dtype, "clone"))


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
    """`size` consecutive elements of a dimension; a view. Its gradient is zeros of the full shape, filled in part."""
    before = x.shape
    shape = list(before)
    shape[dim] = size
    node = record("SliceBackward", (x,), (), lambda g: empty(g.tape, before, g.dtype, "slice_backward"))
    return attach(node, _part(x, tuple(shape)))


def pad_last(x: Tensor, multiple: int) -> Tensor:
    """Zeros at the end of the last dimension, up to a multiple; `x` itself if it is one. The gradient is cut again."""
    size = x.shape[-1]
    missing = -size % multiple
    if not missing:
        return x
    node = record("ConstantPadNdBackward", (x,), (), lambda g: clone(narrow(g, -1, size)))
    return attach(node, empty(x.tape, (*x.shape[:-1], size + missing), x.dtype, "constant_pad_nd"))


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


def cat(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Join tensors in a new one; their gradients are views of its gradient."""
    shape = list(parts[0].shape)
    sizes = [part.shape[dim] for part in parts]
    shape[dim] = sum(sizes)
    node = record("CatBackward", parts, (), lambda g: [narrow(g, dim, size) for size in sizes])
    return attach(node, empty(parts[0].tape, tuple(shape), parts[0].dtype, "cat"))


def _part(x: Tensor, shape: Shape) -> Tensor:
    return alias(x, shape, normalized(shape, x.element_strides()))
