"""Operations that pick elements by their order or by an index: what routers of mixtures are made of.

What is picked is data, how many is not. Gradients are zeros of the full shape, filled in place.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import Shape
from estimator.tape.selective import made
from estimator.tape.tensor import Tensor, binary, empty, unary


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest k values of the last dimension, and their places. Saves the places."""
    return _picked("topk", x, (*x.shape[:-1], k))


def max_last(x: Tensor, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest value of the last dimension, and its place. Saves the place."""
    return _picked("max", x, (*x.shape[:-1], 1) if keepdim else x.shape[:-1])


def _picked(name: str, x: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/ReduceOps.cpp, `value_selecting_reduction_backward_symint`."""
    before = x.shape
    node = record(name, (x,), (), lambda g, _: empty(g.tape, before, g.dtype, "zeros"))
    values, places = made(x.tape, name, lambda: (empty(x.tape, shape, x.dtype, name), empty(x.tape, shape, dtypes.int64, name)))
    values = attach(node, values)
    if node is not None:
        node.save((places,))
    return values, places


def amax_last(x: Tensor) -> Tensor:
    """The largest value of the last dimension, without its place. Saves x and its result.

    Backward: FunctionsManual.cpp, `scale_grad_by_count`: one expression whose temporaries live to its end.
    """

    def backward(g: Tensor, x: Tensor, largest: Tensor) -> Tensor:
        mask = unary("eq", x, dtypes.bool_)
        masked = unary("mul", x, g.dtype)
        count = empty(g.tape, (*x.shape[:-1], 1), dtypes.int64, "sum")
        result = unary("div", masked)
        del mask, count
        return result

    node = record("AmaxBackward", (x,), (x,), backward)
    return attach(node, empty(x.tape, x.shape[:-1], x.dtype, "amax"), save=True)


def argmax_last(x: Tensor) -> Tensor:
    """The place of the largest value of the last dimension."""
    return empty(x.tape, x.shape[:-1], dtypes.int64, "argmax")


def multinomial(x: Tensor) -> Tensor:
    """A place of each row, drawn by its chances, which are divided by random numbers (Distributions.cpp, `multinomial_out`)."""
    drawn = unary("exponential_", x)
    place = argmax_last(x)
    del drawn
    return place


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The lesser of two, element by element, and so the greater. Saves both; where they are equal each gets half of the gradient.

    derivatives.yaml, `minimum`: `at::where(self == other, grad / 2, grad).masked_fill_(self > other, 0)`, and so the other's.
    """
    wanted = a.requires_grad, b.requires_grad

    def backward(g: Tensor, a: Tensor, b: Tensor) -> tuple[Gradient, Gradient]:
        return _minimum_backward(g, a, b, wanted)

    return attach(record("MinimumBackward", (a, b), (a, b), backward), binary("minimum", a, b))


def _minimum_backward(g: Tensor, a: Tensor, b: Tensor, wanted: tuple[bool, bool]) -> tuple[Gradient, Gradient]:
    def one() -> Tensor:
        equal, half = binary("eq", a, b, dtypes.bool_), unary("div", g)
        shared = binary("where", equal, half, g.dtype)
        greater = binary("gt", a, b, dtypes.bool_)
        del equal, half, greater
        return shared

    other = one() if wanted[1] else None
    return (one() if wanted[0] else None), other


def sort(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers in order, and where each was."""
    return empty(x.tape, x.shape, x.dtype, "sort"), empty(x.tape, x.shape, dtypes.int64, "sort")


def gather(x: Tensor, index: Tensor) -> Tensor:
    """The elements of each row at the places that `index` names. Saves both."""
    node = record("GatherBackward", (x,), (x, index), lambda g, x, _: empty(g.tape, x.shape, g.dtype, "new_zeros"))
    return attach(node, empty(x.tape, index.shape, x.dtype, "gather"))


def scattered(values: Tensor, places: Tensor, size: int) -> Tensor:
    """Rows of `size` of a constant, and in each its values at their places (`torch.full_like(...).scatter_`). Saves the places;
    the gradient is gathered."""
    node = record("ScatterBackward", (values,), (places,), lambda g, places: empty(g.tape, places.shape, g.dtype, "gather"))
    return attach(node, empty(values.tape, (*values.shape[:-1], size), values.dtype, "full_like"))


def index_add_(x: Tensor, places: Tensor, source: Tensor) -> Tensor:
    """Adds each row of `source` to the row of x at its place, on the bytes of x, which the caller must not use any more.

    Saves the places, and `source` for its shape; its gradient is picked from the result's (derivatives.yaml, `index_add`).
    """
    wanted = x.requires_grad

    def backward(g: Tensor, places: Tensor, source: Tensor) -> tuple[Gradient, Gradient]:
        return (g if wanted else None), empty(g.tape, (*places.shape, *g.shape[1:]), g.dtype, "index_select")

    node = record("IndexAddBackward", (x, source), (places, source), backward)
    return attach(node, Tensor(x.storage, x.shape, x.dtype, x.strides))


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """x with a number where the mask is set: a contiguous copy. Saves the mask; the gradient is filled with zeros likewise."""
    node = record("MaskedFillBackward", (x,), (mask,), lambda g, _: empty(g.tape, g.shape, g.dtype, "masked_fill"))
    return attach(node, empty(x.tape, x.shape, x.dtype, "masked_fill"))


def masked_fill_(x: Tensor, mask: Tensor) -> Tensor:
    """The same on the bytes of x, which the caller must not use any more."""
    node = record("MaskedFillBackward", (x,), (mask,), lambda g, _: empty(g.tape, g.shape, g.dtype, "masked_fill"))
    return attach(node, Tensor(x.storage, x.shape, x.dtype, x.strides))
