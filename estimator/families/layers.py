"""A model's stack of layers, built and run once per distinct place.

All layers after the first do the same, so the stack holds one layer for the first place and one that stands for the
rest. Where checkpointing groups layers into segments, the same holds for the segments, and within them for the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from estimator.tape.autograd import keep
from estimator.tape.checkpoint import checkpoint
from estimator.tape.tape import Slot, Tape
from estimator.tape.tensor import Tensor

Layer = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Which layers are recomputed in backward.

    `every` k: each k-th layer by itself, from the first on (0: none). `segment` s: runs of s consecutive layers, each as
    one, whose inputs alone are kept (0: no such runs).
    """

    every: int = 0
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Edges:
    """How many layers at each end behave unlike those between: the first always, the last under prefetching."""

    first: int = 1
    last: int = 0


def runs(label: str, count: int, edges: Edges, parent: Slot | None = None) -> list[Slot]:
    """`count` equal things in a row as slots: those at the edges one by one, the rest as one slot."""
    middle = count - edges.first - edges.last
    if middle <= 1:
        return [Slot(f"{label}[{i}]", 1, parent) for i in range(count)]
    slots = [Slot(f"{label}[{i}]", 1, parent) for i in range(edges.first)]
    slots.append(Slot(f"{label}[{edges.first}:{count - edges.last}]", middle, parent))
    slots += [Slot(f"{label}[{i}]", 1, parent) for i in range(count - edges.last, count)]
    return slots


class Layers:
    """The stack: iterate over it to run it, going to each layer's slot on the way."""

    def __init__(self, tape: Tape, count: int, checkpointing: Checkpointing, edges: Edges, make: Callable[[], Layer]):
        self.tape = tape
        self.make = make
        self.recomputes = bool(checkpointing.every or checkpointing.segment)
        if checkpointing.segment:
            self.items = list(self._segments(count, checkpointing.segment, edges))
        elif checkpointing.every > 1:
            self.items = list(self._every(count, checkpointing.every, edges))
        else:
            recompute = checkpointing.every == 1
            self.items = [self._layer(slot, recompute) for slot in runs("layers", count, edges)]
        tape.enter(None)

    def __iter__(self) -> Iterator[Layer]:
        for slot, layer in self.items:
            self.tape.enter(slot)
            yield layer
        self.tape.enter(None)

    def _layer(self, slot: Slot, recompute: bool) -> tuple[Slot, Layer]:
        self.tape.enter(slot)
        layer = self.make()
        layer = partial(checkpoint, layer) if recompute else layer
        return slot, _handing_on(layer) if self.recomputes else layer

    def _every(self, count: int, k: int, edges: Edges) -> Iterator[tuple[Slot, Layer]]:
        whole, rest = divmod(count, k)
        outer = runs("groups", whole, edges)
        if rest:
            outer.append(Slot("groups[-1]"))
        for group in outer:
            size = rest if rest and group is outer[-1] else k
            yield self._layer(Slot("layers[0]", 1, group), True)
            for slot in runs("layers[1:]", size - 1, Edges(0, edges.last), group):
                yield self._layer(slot, False)

    def _segments(self, count: int, size: int, edges: Edges) -> Iterator[tuple[Slot, Layer]]:
        """Equal segments, after a shorter first one if the layers do not divide."""
        whole, rest = divmod(count, size)
        outer = [Slot("segments[0]"), *runs("segments", whole, Edges(0, edges.last))] if rest else runs("segments", whole, edges)
        for group in outer:
            length = rest if rest and group is outer[0] else size
            layers = [self._layer(slot, False) for slot in runs("layers", length, Edges(1, 1), group)]
            yield group, _handing_on(partial(checkpoint, _Segment(self.tape, layers)))


def _handing_on(layer: Layer) -> Layer:
    """Where some layers are recomputed, what a layer hands to the next is kept, and counted so in every slot."""

    def run(hidden: Tensor, *shared: Tensor | None) -> Tensor:
        out = layer(hidden, *shared)
        keep(out)
        return out

    return run


class _Segment:
    """Consecutive layers as one."""

    def __init__(self, tape: Tape, layers: list[tuple[Slot, Layer]]):
        self.tape = tape
        self.layers = layers

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Tensor:
        out = hidden
        for slot, layer in self.layers:
            self.tape.enter(slot)
            out = layer(out, *shared)
        return out
