"""What a model's output holds in addition to the loss, until the caller lets it go."""

from __future__ import annotations

from collections.abc import Callable

from estimator.tape import dtypes
from estimator.tape.autograd import keep
from estimator.tape.pointwise import to
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor


class PerLayer:
    """A tensor of every layer, each let go of in the slot of its layer."""

    def __init__(self, tape: Tape):
        self.tape = tape
        self.tensors: list[tuple[Slot | None, Tensor]] = []

    def append(self, t: Tensor) -> None:
        """Hold a tensor of the layer whose slot the run is in."""
        keep(t)
        self.tensors.append((self.tape.slot, t))

    def each(self, change: Callable[[Tensor], Tensor]) -> PerLayer:
        """A new tensor of every layer, made by `change` in the slot of its layer."""
        here, changed = self.tape.slot, PerLayer(self.tape)
        for slot, t in self.tensors:
            self.tape.enter(slot)
            changed.append(change(t))
        self.tape.enter(here)
        return changed

    def __del__(self) -> None:
        here = self.tape.slot
        while self.tensors:
            self.tape.enter(self.tensors[0][0])
            del self.tensors[0]
        self.tape.enter(here)


Held = Tensor | tuple[Tensor | PerLayer, ...]


def widened(held: Held) -> Held:
    """What accelerate makes of a model's outputs under autocast: half precision becomes float32 (utils/operations.py)."""
    if isinstance(held, Tensor):
        return _widened(held)
    return tuple([each.each(_widened) if isinstance(each, PerLayer) else _widened(each) for each in held])


def _widened(t: Tensor) -> Tensor:
    return to(t, dtypes.float32) if t.dtype.is_floating else t
