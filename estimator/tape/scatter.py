"""Putting the elements of one tensor into the places of another that a mask picks, one after the other.

How many places there are is data: here as many as the source has elements, which is what models check.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor, empty, output


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`x.masked_scatter(mask, source)`: a new tensor. The mask is broadcast to `x`; it alone is saved.

    CUDA counts the places before each element in numbers of eight bytes, and reads a mask that is laid out row by row
    (aten/src/ATen/native/cuda/IndexKernel.cpp, `masked_scatter__cuda`; IndexKernel.cu, `launch_masked_scatter_kernel`).
    """
    wanted, shape = (x.requires_grad, source.requires_grad), source.shape

    def backward(g: Tensor, mask: Tensor) -> tuple[Gradient, Gradient]:
        kept = output("masked_fill", (g,), g.shape, g.dtype) if wanted[0] else None
        return kept, _selected(g, mask, shape) if wanted[1] else None

    node = record("MaskedScatterBackward", (x, source), (mask,), backward)
    out = output("masked_scatter", (x, source), x.shape, x.dtype)
    counts = empty(x.tape, x.shape, dtypes.int64, "masked_scatter")
    dense = None if mask.shape == x.shape and mask.strides is None else empty(x.tape, x.shape, dtypes.bool_, "masked_scatter")
    del counts, dense
    return attach(node, out)


def _selected(g: Tensor, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The elements that the mask picks, found by their places (FunctionsManual.cpp, `masked_scatter_backward_symint`;
    cuda/IndexKernel.cpp, `masked_select_out_cuda_impl`; cuda/Nonzero.cu)."""
    count = 1
    for size in shape:
        count *= size
    dense = None if mask.shape == g.shape and mask.strides is None else empty(g.tape, g.shape, dtypes.bool_, "nonzero")
    places = empty(g.tape, (len(g.shape), count), dtypes.int64, "nonzero")
    del dense
    out = output("masked_select", (g,), shape, g.dtype)
    del places
    return out


def picked(x: Tensor, mask: Tensor, shape: Shape) -> Tensor:
    """`x[mask]`: the rows that a mask picks, which is saved. Their gradient is zeros, filled in part."""
    before = x.shape
    node = record("IndexBackward", (x,), (mask,), lambda g, _: output("new_zeros", (g,), before, g.dtype))
    return attach(node, output("index", (x,), shape, x.dtype))


def write_picked(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """`x[mask] = rows`, on the bytes of x, which the caller must not use any more. Saves the mask.

    derivatives.yaml, `index_put_`: what x was before gets a copy of the gradient with zeros there, the rows what the mask picks.
    """
    wanted, shape, dtype = (x.requires_grad, rows.requires_grad), rows.shape, rows.dtype

    def backward(g: Tensor, mask: Tensor) -> tuple[Gradient, Gradient]:
        zeros = empty(g.tape, shape, dtype, "zeros_like") if wanted[0] else None
        kept = output("index_put", (g,), g.shape, g.dtype) if wanted[0] else None
        del zeros
        return kept, output("index", (g,), shape, g.dtype) if wanted[1] else None

    node = record("IndexPutBackward", (x, rows), (mask,), backward)
    return attach(node, Tensor(x.storage, x.shape, x.dtype, x.strides))


def fill_picked(x: Tensor, mask: Tensor, value: Tensor, count: int) -> Tensor:
    """`x[mask] = value` for [batch, tokens, size] and one row, which a mask of [batch, tokens] writes into `count` places: on the
    bytes of x, which the caller must not use any more. Saves the mask.

    derivatives.yaml, `index_put_`. Where x is a view, its gradient is copied twice (csrc/autograd/functions/tensor.cpp,
    `CopySlices`). The row's gradient is the sum of what the mask picks.
    """
    wanted, view = (x.requires_grad, value.requires_grad), x.is_view
    shape, dtype = value.shape, value.dtype

    def backward(g: Tensor, mask: Tensor) -> tuple[Gradient, Gradient]:
        whole = output("new_empty_strided", (g,), g.shape, g.dtype) if view else None
        part = output("clone", (g,), g.shape, g.dtype) if view else g
        zeros = empty(g.tape, shape, dtype, "zeros_like") if wanted[0] else None
        kept = output("index_put", (part,), g.shape, g.dtype) if wanted[0] else None
        del zeros
        rows = output("index", (part,), (count, *shape), g.dtype) if wanted[1] else None
        del part
        if view and wanted[0]:
            kept = whole
        del whole
        return kept, None if rows is None else output("sum", (rows,), shape, g.dtype)

    node = record("CopySlices" if view else "IndexPutBackward", (x, value), (mask,), backward)
    return attach(node, Tensor(x.storage, x.shape, x.dtype, x.strides))
