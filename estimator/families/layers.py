"""A model's stack of layers, built and run once per distinct place.

All layers of a kind after the first do the same, so the stack holds one layer for the first place and one that stands for
the rest. Where checkpointing groups layers into segments, the same holds for the segments, and within them for the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from estimator.contract.errors import NotModelled
from estimator.tape.autograd import keep
from estimator.tape.checkpoint import FIRST, checkpoint, reentrant_checkpoint
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import to
from estimator.tape.selective import POLICIES
from estimator.tape.slots import Slot, Stack
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor

Layer = Callable[..., Any]
"""Hidden states in, hidden states out; and what else the next layer takes or the caller holds."""


FULL = "full"
"""The way of recomputing a layer in which nothing but its inputs is kept."""


def hidden_of(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The hidden states that a layer returned."""
    return out if isinstance(out, Tensor) else out[0]


class Part(NamedTuple):
    """One layer: its kind, whether an adapter is put on it, whether something of it is trained, and something `before` it.

    (The first layer of which something is trained may get an input without gradients.)
    """

    kind: Any
    adapted: bool
    chosen: bool
    before: bool


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Which layers are recomputed in backward.

    `every` k: each k-th layer by itself, from the first on (0: none). `segment` s: runs of s consecutive layers, each as
    one, whose inputs alone are kept (0: no such runs). `first`: the first layers, so many in each way, one way after the other;
    a way is `FULL` or the name of what is kept. `modules`: these of each layer. `reentrant`: by torch's older implementation,
    which saves for each layer what it is handed `by_position`.
    `offloads`: what is kept of a layer's inputs lies in the host's memory.
    `skips` layers before the first that `every` counts. `inside` what ranks share a layer by, whose parameters are then gathered
    once for both passes. `early_stop`: a layer is run again up to the last tensor that backward needs, not to its end.
    """

    every: int = 0
    segment: int = 0
    first: tuple[tuple[str, int], ...] = ()
    modules: tuple[str, ...] = ()
    reentrant: bool = False
    by_position: frozenset[int] = FIRST
    offloads: bool = False
    skips: int = 0
    inside: bool = False
    early_stop: bool = True

    @property
    def recomputes(self) -> bool:
        """Whether anything is recomputed in backward."""
        return bool(self.every or self.segment or self.modules or any(count for _, count in self.first))

    def way(self, layer: int) -> str | None:
        """How a layer is recomputed by itself, if it is."""
        if self.every:
            return FULL if layer >= self.skips and (layer - self.skips) % self.every == 0 else None
        for way, count in self.first:
            if layer < count:
                return way
            layer -= count
        return None

    def apply(self, layer: Layer, way: str | None) -> Layer:
        """The layer, recomputed in that way."""
        if way is None:
            return layer
        if way == FULL and self.reentrant:
            return partial(reentrant_checkpoint, layer, by_position=self.by_position)
        policy = None if way == FULL else POLICIES[way]
        checkpointed = partial(checkpoint, layer, policy=policy, early_stop=self.early_stop)
        return partial(checkpointed, offloads=self.offloads, by_position=self.by_position)


@dataclass(frozen=True, slots=True)
class Edges:
    """How many layers at each end behave unlike those between: the first always, the last under prefetching.

    `frozen`: how many layers at the start get an input without gradients, so that they may keep nothing of what layers share.
    """

    first: int = 1
    last: int = 0
    frozen: int = 0


def runs(stack: Stack, count: int, edges: Edges, parent: Slot | None = None, start: int = 0, size: int = 1) -> list[Slot]:
    """`count` equal things in a row as slots: those at the edges one by one, the rest as one slot."""
    return [slot for slot, _ in places(stack, [None] * count, edges, parent, start, size)]


def places(
    stack: Stack, kinds: Sequence[Any], edges: Edges, parent: Slot | None = None, begin: int = 0, size: int = 1
) -> list[tuple[Slot, Any]]:
    """Things in a row as slots with their kinds: what is alike in a row shares one. Each is `size` layers, from `begin` on.

    The layers at the edges stand alone, and so does the first of each kind: backward comes to it last, and lets go of what
    its kind has in common. Where kinds are several, it matters what comes before a layer, and under prefetching what comes
    after it. Where they alternate (attention local, local, global, local, local, global...) whole periods share a slot, in
    which each row has one; then `parent` must be None.
    """
    count, stop = len(kinds), max(edges.first, len(kinds) - edges.last)
    alone = {*range(min(edges.first, count)), *range(stop, count)}
    if edges.first:
        alone |= {kinds.index(kind, edges.frozen) for kind in set(kinds[edges.frozen : stop])}
    several, prefetching = len(set(kinds)) > 1, edges.last > 0
    marks = [(i if i in alone else None, *kinds[max(0, i - several) : i + 1 + (several and prefetching)]) for i in range(count)]

    def rows(start: int, stop: int, parent: Slot | None) -> list[tuple[Slot, Any]]:
        found = []
        for _, length in _rows(marks[start:stop]):
            found.append((slot_of(stack, begin + start * size, size, length, parent), kinds[start]))
            start += length
        return found

    start = 1 + max((i for i in alone if i < stop), default=-1)
    period = _period(marks[start:stop]) if parent is None and len(_rows(marks[start:stop])) > FEW_ROWS else 0
    if period:
        apart = period if prefetching else 0
        times = (stop - start - 2 * apart) // period
        if times > 1:
            start += apart
            end = start + times * period
            group = slot_of(stack, begin + start * size, period * size, times)
            return [*rows(0, start, parent), *rows(start, start + period, group), *rows(end, count, parent)]
    return rows(0, count, parent)


def slot_of(stack: Stack, start: int, size: int = 1, times: int = 1, parent: Slot | None = None) -> Slot:
    """A slot of so many `times` `size` layers from layer `start` on."""
    end = start + times * size
    label = f"{stack.label}[{start}]" if end == start + 1 else f"{stack.label}[{start}:{end}]"
    return Slot(label, times, parent, stack, start, size)


FEW_ROWS = 3
"""Rows of equal kinds up to which no period is looked for: some leading layers of another kind, then all alike."""


def _rows(kinds: Sequence[Any]) -> list[tuple[Any, int]]:
    """Equal kinds in a row, and how many."""
    return [(kind, len(list(members))) for kind, members in groupby(kinds)]


def _period(kinds: Sequence[Any]) -> int:
    """The shortest period in which the kinds repeat, at least twice; 0 if there is none."""
    for period in range(1, len(kinds) // 2 + 1):
        if all(kinds[i] == kinds[i + period] for i in range(len(kinds) - period)):
            return period
    return 0


class Layers:
    """The stack: iterate over it to run it, going to each layer's slot on the way.

    `holding`: something that a layer returns in addition to hidden states lives until the next layer is done, so that a layer
    after one that is recomputed frees what others do not. `before`: layers of the stacks built earlier, from which on `every`
    counts.
    """

    def __init__(
        self,
        tape: Tape,
        kinds: Sequence[Part],
        checkpointing: Checkpointing,
        edges: Edges,
        make: Callable[[Part, str | None], Layer],
        label: str = "layers",
        input_dtype: DType | None = None,
        holding: bool = False,
        before: int = 0,
    ):
        self.tape = tape
        self.holding = holding
        self.make = make
        self.input_dtype = input_dtype
        self.stack = Stack(label, len(kinds))
        self.checkpointing = checkpointing
        uniform = len(set(kinds)) <= 1
        if checkpointing.segment:
            if not uniform:
                raise NotModelled(
                    "segments of layers of several kinds are not modelled yet; use full or {every: k}",
                    "training.activation_checkpointing",
                )
            self.items = list(self._segments(kinds, checkpointing.segment, edges))
        elif checkpointing.every > 1 and uniform:
            ahead = (checkpointing.skips - before) % checkpointing.every
            self.items = list(self._every(kinds, checkpointing.every, edges, ahead))
        else:
            pairs = [(kind, checkpointing.way(before + i)) for i, kind in enumerate(kinds)]
            self.items = [self._layer(slot, kind, way) for slot, (kind, way) in places(self.stack, pairs, edges)]
        tape.enter(None)

    def __iter__(self) -> Iterator[Layer]:
        for _, layer in self.by_kind():
            yield layer

    def by_kind(self) -> Iterator[tuple[Any, Layer]]:
        """Each layer with its kind."""
        for slot, part, layer in self.items:
            self.tape.enter(slot)
            yield part.kind, layer if self.tape.states is None else self._shown(slot, layer)
        self.tape.enter(None)

    def _shown(self, slot: Slot, layer: Layer) -> Layer:
        """A layer whose hidden states the model's output holds."""

        def run(*given: Any) -> Any:
            states = self.tape.states
            assert states is not None
            if not states:
                states.append((None, given[0]))
            out = layer(*given)
            states.append((slot, hidden_of(out)))
            return out

        return run

    def _layer(self, slot: Slot, kind: Any, way: str | None) -> tuple[Slot, Any, Layer]:
        self.tape.enter(slot)
        layer = self.make(kind, way)
        layer = layer if self.input_dtype is None else _casting(layer, self.input_dtype)
        return slot, kind, _handing_on(layer, self.holding) if self.checkpointing.recomputes else layer

    def _every(self, kinds: Sequence[Any], k: int, edges: Edges, ahead: int) -> Iterator[tuple[Slot, Any, Layer]]:
        """Groups of a recomputed layer and those up to the next; `ahead`: layers before the first that is recomputed."""
        ahead = min(ahead, len(kinds))
        for slot in runs(self.stack, ahead, edges if ahead == len(kinds) else Edges(edges.first)):
            yield self._layer(slot, kinds[0], None)
        whole, rest = divmod(len(kinds) - ahead, k)
        outer = runs(self.stack, whole, edges, None, ahead, k)
        if rest:
            outer.append(slot_of(self.stack, len(kinds) - rest, rest))
        for group in outer:
            size = rest if rest and group is outer[-1] else k
            yield self._layer(slot_of(self.stack, group.start, parent=group), kinds[0], FULL)
            for slot in runs(self.stack, size - 1, Edges(int(self.holding), edges.last), group, group.start + 1):
                yield self._layer(slot, kinds[0], None)

    def _segments(self, kinds: Sequence[Any], size: int, edges: Edges) -> Iterator[tuple[Slot, Any, Layer]]:
        """Equal segments, after a shorter first one if the layers do not divide."""
        whole, rest = divmod(len(kinds), size)
        outer = runs(self.stack, whole, Edges(0, edges.last) if rest else edges, None, rest, size)
        if rest:
            outer.insert(0, slot_of(self.stack, 0, rest))
        for group in outer:
            length = rest if rest and group is outer[0] else size
            inside = runs(self.stack, length, Edges(1, 1), group, group.start)
            layers = [self._layer(slot, kinds[0], None) for slot in inside]
            yield group, kinds[0], _handing_on(self.checkpointing.apply(_Segment(self.tape, layers), FULL), self.holding)


def _handing_on(layer: Layer, holding: bool) -> Layer:
    """Where some layers are recomputed, what a layer hands to the next is kept, and counted so in every slot."""

    def run(hidden: Tensor, *shared: Tensor | None) -> Any:
        out = layer(hidden, *shared)
        for t in (out,) if isinstance(out, Tensor) else out[:1] if holding else out:
            if t is not None:
                keep(t)
        return out

    return run


def _casting(layer: Layer, dtype: DType) -> Layer:
    """A mixed-precision policy casts what a layer is called with, outside of its checkpoint."""

    def run(hidden: Tensor, *shared: Tensor | None) -> Any:
        shared = tuple([to(t, dtype) if isinstance(t, Tensor) and t.dtype.is_floating else t for t in shared])
        return layer(to(hidden, dtype), *shared)

    return run


class _Segment:
    """Consecutive layers as one."""

    def __init__(self, tape: Tape, layers: list[tuple[Slot, Any, Layer]]):
        self.tape = tape
        self.layers = layers

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Any:
        out: Any = hidden
        for slot, _, layer in self.layers:
            self.tape.enter(slot)
            out = layer(hidden_of(out), *shared)
        return out
