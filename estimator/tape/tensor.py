"""Symbolic tensors: a shape, an element type and a layout on a storage, but no numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from estimator.tape.dtypes import DType, promote
from estimator.tape.layout import Shape, Strides, broadcast, contiguous, elementwise_strides, is_dense
from estimator.tape.tape import Storage, Tape

if TYPE_CHECKING:
    from estimator.tape.autograd import Node


class Tensor:
    """A tensor of `shape` and `dtype` on `storage`; `strides` is None where it is contiguous.

    `grad_fn` and `output_nr` say which node of the graph made it. A leaf that requires gradients has none, and collects
    its gradient in `grad`; `on_grad` is called each time it has, `hooks` before that. A view in torch keeps the tensor that it
    is a view of.
    """

    __slots__ = (
        "__weakref__",
        "dtype",
        "grad",
        "grad_fn",
        "hooks",
        "is_view",
        "on_grad",
        "output_nr",
        "requires_grad",
        "shape",
        "storage",
        "strides",
        "tape",
    )

    def __init__(self, storage: Storage, shape: Shape, dtype: DType, strides: Strides = None):
        self.storage = storage
        self.tape: Tape = storage.tape
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.requires_grad = False
        self.grad_fn: Node | None = None
        self.hooks: tuple[Callable[[dict[int, Tensor | None]], None], ...] = ()
        self.output_nr = 0
        self.grad: Tensor | None = None
        self.on_grad: Callable[[], None] | None = None
        self.is_view = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.numel * self.dtype.itemsize

    def detach(self) -> Tensor:
        """A tensor on the same storage, outside the graph."""
        return Tensor(self.storage, self.shape, self.dtype, self.strides)

    def element_strides(self) -> Shape:
        """The strides, also where the tensor is contiguous."""
        return contiguous(self.shape) if self.strides is None else self.strides

    def __repr__(self) -> str:
        return f"Tensor({list(self.shape)}, {self.dtype})"


def empty(tape: Tape, shape: Shape, dtype: DType, operation: str = "empty", strides: Strides = None) -> Tensor:
    """A new tensor on a storage of its own."""
    return Tensor(Storage(tape, prod(shape) * dtype.itemsize, operation, (shape, dtype)), shape, dtype, strides)


def output(operation: str, reads: Sequence[Tensor], shape: Shape, dtype: DType, strides: Strides = None) -> Tensor:
    """The new tensor that a kernel writes which reads these."""
    out = empty(reads[0].tape, shape, dtype, operation, strides)
    moved(operation, *reads, out)
    return out


def moved(operation: str, *tensors: Tensor) -> None:
    """A kernel reads or writes each of these once. (What was broadcast lies there once.)"""
    nbytes = 0
    for t in tensors:
        own, whole = prod(t.shape) * t.dtype.itemsize, t.storage.nbytes
        nbytes += whole if whole < own else own
    tensors[0].tape.compute(operation, 0, nbytes)


def alias(x: Tensor, shape: Shape, strides: Strides = None) -> Tensor:
    """A view: another tensor on the storage of `x`."""
    view = Tensor(x.storage, shape, x.dtype, strides)
    view.is_view = True
    return view


def like(operation: str, x: Tensor, dtype: DType | None = None) -> Tensor:
    """A new tensor of the shape of `x`, and of its layout if that is dense."""
    strides = x.strides
    if strides is not None and not is_dense(x.shape, strides):
        strides = elementwise_strides(x.shape, ((x.shape, strides),))
    return empty(x.tape, x.shape, dtype or x.dtype, operation, strides)


def unary(operation: str, x: Tensor, dtype: DType | None = None) -> Tensor:
    """The new tensor that an element-wise operation on `x` makes."""
    out = like(operation, x, dtype)
    moved(operation, x, out)
    return out


def binary(operation: str, a: Tensor, b: Tensor, dtype: DType | None = None) -> Tensor:
    """The new tensor that an element-wise operation on two makes: their common shape, type and layout."""
    if dtype is None:
        dtype = promote(a.dtype, b.dtype) if a.shape and b.shape else (a.dtype if a.shape else b.dtype)
    if a.strides is None and b.strides is None:
        shape = a.shape if a.shape == b.shape else broadcast(a.shape, b.shape)
        return output(operation, (a, b), shape, dtype)
    shape = broadcast(a.shape, b.shape)
    strides = elementwise_strides(shape, ((a.shape, a.strides), (b.shape, b.strides)))
    return output(operation, (a, b), shape, dtype, strides)
