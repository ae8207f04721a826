"""Temporaries of operations over lists of tensors (torch's `_foreach_` functions), one per parameter."""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.parameter import Parameter
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty


class Lists:
    """Lists of temporaries, one tensor per parameter, as multi-tensor steps make them.

    A parameter without a slot is where the tape is.
    """

    def __init__(self, tape: Tape):
        self.tape = tape
        self.outside = tape.slot

    def new(
        self,
        operation: str,
        parameters: list[Parameter],
        shape: Callable[[Shape], Shape] = lambda shape: shape,
        dtype: DType | None = None,
    ) -> list[tuple[Slot | None, Tensor]]:
        """One tensor of each parameter's type and `shape`, where the parameter lies."""
        held = []
        for p in parameters:
            self.tape.enter(p.slot or self.outside)
            held.append((self.tape.slot, empty(p.local.tape, shape(p.local.shape), dtype or p.local.dtype, operation)))
        self.tape.enter(self.outside)  # the layers' next round begins
        return held

    def free(self, held: list[tuple[Slot | None, Tensor]]) -> None:
        """Drop a list, the last tensor first, as CPython does."""
        while held:
            self.tape.enter(held[-1][0])
            held.pop()
        self.tape.enter(self.outside)
