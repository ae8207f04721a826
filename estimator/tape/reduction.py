"""Sums, means and running sums over one dimension."""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, alias, binary, output, unary
from estimator.tape.views import contiguous, expand, unsqueeze


def sum_dim(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """`x.sum(dim, keepdim=keepdim)`. Saves nothing; the gradient is a view. Autocast asks for the sum in float32."""
    shape, place = x.shape, dim % len(x.shape)
    dtype = dtypes.float32 if x.tape.autocast and x.dtype.is_floating else x.dtype
    node = record("SumBackward", (x,), (), lambda g: _spread(g, shape, place, keepdim))
    return attach(node, output("sum", (x,), _without(shape, place, keepdim), dtype))


def mean(x: Tensor, dim: int) -> Tensor:
    """`x.mean(dim)`. Saves nothing."""
    shape, place = x.shape, dim % len(x.shape)
    node = record("MeanBackward", (x,), (), lambda g: unary("div", _spread(g, shape, place, False)))
    return attach(node, output("mean", (x,), _without(shape, place, False), x.dtype))


def std_last(x: Tensor) -> Tensor:
    """`x.std(-1, keepdim=True)`. Saves x and its result.

    Backward: FunctionsManual.cpp, `std_backward` and `var_backward`; each is one expression whose temporaries live to its end.
    """

    def backward(g: Tensor, x: Tensor, deviation: Tensor) -> Tensor:
        twice = unary("mul", deviation)
        spread = binary("div", g, twice)
        zero = unary("eq", deviation, dtypes.bool_)
        del twice, zero
        average = output("mean", (x,), (*x.shape[:-1], 1), x.dtype)
        apart = binary("sub", x, average)
        scaled = unary("mul", spread)
        return binary("mul", scaled, apart)

    node = record("StdBackward", (x,), (x,), backward)
    return attach(node, output("std", (x,), (*x.shape[:-1], 1), x.dtype), save=True)


def vector_norm(x: Tensor, dim: int | None = None) -> Tensor:
    """The Euclidean length over one dimension, or over all. Saves x and its result; autocast asks for it in float32.

    Backward: FunctionsManual.cpp, `norm_backward`, one expression whose temporaries live to its end.
    """
    dtype = dtypes.float32 if x.tape.autocast else x.dtype
    shape = () if dim is None else _without(x.shape, dim % len(x.shape), keep=False)

    def backward(g: Tensor, x: Tensor, length: Tensor) -> Tensor:
        spread = alias(length, (1,) * len(x.shape)) if dim is None else unsqueeze(length, dim)
        unit = binary("div", x, spread)
        zero = unary("eq", spread, dtypes.bool_)
        result = binary("mul", g if dim is None else unsqueeze(g, dim), unit, unit.dtype)
        del zero
        return result

    node = record("LinalgVectorNormBackward", (x,), (x,), backward)
    return attach(node, output("linalg_vector_norm", (x,), shape, dtype), save=True)


def cumsum(x: Tensor, dim: int) -> Tensor:
    """Running sums. Saves nothing; its kernel works on a copy of what is not contiguous. Autocast asks for it in float32."""
    dtype = dtypes.float32 if x.tape.autocast and x.dtype.is_floating else x.dtype
    node = record("CumsumBackward", (x,), (), lambda g: _sums_from_behind(g, dim))
    return attach(node, _running(x.detach(), dtype))


def _sums_from_behind(g: Tensor, dim: int) -> Tensor:
    if g.shape[dim] == 1:
        return g
    turned = unary("flip", g)
    sums = _running(turned, g.dtype)
    return unary("flip", sums)  # one C++ expression: its temporaries live to its end


def _running(x: Tensor, dtype: DType) -> Tensor:
    wide = to(x, dtype)
    dense = contiguous(wide)
    out = output("cumsum", (dense,), x.shape, dtype)
    del wide, dense
    return out


def _without(shape: Shape, dim: int, keep: bool) -> Shape:
    return (*shape[:dim], *((1,) if keep else ()), *shape[dim + 1 :])


def _spread(g: Tensor, shape: Shape, dim: int, kept: bool) -> Tensor:
    """A gradient handed to every element that was summed."""
    return expand(g if kept else unsqueeze(g, dim), shape)
