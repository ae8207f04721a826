"""Where on a tape something happens: a slot stands for layers that do the same, one after the other."""

from __future__ import annotations

from typing import NamedTuple


class Stack(NamedTuple):
    """So many layers in a row, as the model calls them."""

    label: str
    layers: int


class Slot:
    """A place in the model that stands for `repeat` equal ones: the later layers, which all do the same.

    What is recorded in a slot is replayed `repeat` times. A slot may lie in another: layers in a checkpoint segment, tokens
    of a scan in a layer. Of a `stack` it starts at layer `start`, and each of its passes is `step` layers further; what lies in
    a layer is at that layer.
    """

    __slots__ = ("label", "parent", "path", "repeat", "stack", "start", "step", "total")

    def __init__(
        self, label: str, repeat: int = 1, parent: Slot | None = None, stack: Stack | None = None, start: int = 0, step: int = 0
    ):
        self.label, self.repeat, self.parent = label, repeat, parent
        self.stack: Stack | None = parent.stack if stack is None and parent else stack
        self.start: int = parent.start if stack is None and parent else start
        self.step = step
        self.total: int = repeat * (parent.total if parent else 1)
        """How often it occurs in the model."""
        self.path: tuple[Slot, ...] = (*(parent.path if parent else ()), self)
        """Itself, after those that it lies in, from the outermost on."""

    def __repr__(self) -> str:
        return f"Slot({self.label}, x{self.total})"
