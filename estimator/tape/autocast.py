"""torch.autocast: matrix products in half precision over float32 weights, and its cache of cast weights.

A cast of a trainable float32 leaf is kept until the outermost autocast context ends, so that a weight that is used twice
is cast once (aten/src/ATen/autocast_mode.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from estimator.tape.dtypes import DType, float32
from estimator.tape.pointwise import to
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor


class Autocast:
    """One outermost autocast context: its type, and the cast weights that it keeps, by the slot that they were cast in."""

    def __init__(self, dtype: DType):
        self.dtype = dtype
        self.weights: dict[Slot | None, dict[Tensor, Tensor]] = {}


@contextmanager
def autocast(tape: Tape, dtype: DType | None) -> Iterator[None]:
    """Run in autocast to `dtype`; None does nothing."""
    if dtype is None or tape.autocast is not None:
        yield
        return
    tape.autocast = context = Autocast(dtype)
    try:
        yield
    finally:
        tape.autocast = None
        for slot, weights in context.weights.items():
            here = tape.enter(slot)
            weights.clear()
            tape.enter(here)


@contextmanager
def paused(tape: Tape) -> Iterator[None]:
    """Within an operation that autocast has cast the arguments of: it casts nothing there."""
    context, tape.autocast = tape.autocast, None
    try:
        yield
    finally:
        tape.autocast = context


def cast(x: Tensor) -> Tensor:
    """An operand as autocast hands it to a matrix product."""
    context = x.tape.autocast
    if context is None or x.dtype is context.dtype or not x.dtype.is_floating:
        return x
    if x.dtype is float32 and x.requires_grad and x.grad_fn is None:
        for weights in context.weights.values():  # also where another layer, which has the same weight, has cast it
            if x in weights:
                return weights[x]
        weights = context.weights.setdefault(x.tape.slot, {})
        weights[x] = to(x, context.dtype)
        return weights[x]
    return to(x, context.dtype)


def cast_all(*tensors: Tensor) -> list[Tensor]:
    """The operands of one operation. They are cast from the last to the first (as C++ evaluates the arguments of a call), and
    backward, which begins with what was done last, widens the first operand's gradient first.
    """
    return [cast(t) for t in reversed(tensors)][::-1]
