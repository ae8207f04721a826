"""Every allocation and release of a run, layer by layer, from a tape on which one layer stands for many.

`tape/replay.py` counts a slot that stands for n layers by arithmetic; here each of its passes is gone through, and each tensor
gets the layer that it is of. A layer frees what the layer before it made (its input, the gradient that came to it), while the
tape has the first layer's freed each time (`tape/handed.py`): the others free what the layer beside them made.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from estimator.tape.handed import BACKWARD, handed_on
from estimator.tape.replay import Stretch, folded
from estimator.tape.slots import Slot
from estimator.tape.tape import Recomputation, Tape


@dataclass(slots=True)
class Birth:
    """A tensor from its allocation to its release, which are numbers of events; `died` is None where it outlives the step.

    `storage`: what it is on the tape. `layer`: of its slot's stack, None outside of all layers.
    """

    storage: int
    layer: int | None
    born: int
    died: int | None = None
    recomputed: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """One occurrence of a phase, from event `start` to `stop`."""

    name: str
    start: int
    stop: int


@dataclass(slots=True)
class Course:
    """A run event by event: `events` has `+(i + 1)` where `births[i]` is allocated and `-(i + 1)` where it is released.

    `unmatched`: bytes of releases of which no tensor could be found; none on any tape that is known.
    """

    tape: Tape
    events: list[int] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    unmatched: int = 0

    def size(self, event: int) -> int:
        """Bytes by which an event changes what is alive."""
        size = self.tape.sizes[self.births[abs(event) - 1].storage]
        return size if event > 0 else -size


def course(tape: Tape) -> Course:
    """Go through all of a tape's phases but those that are simulated aside, which leave nothing behind."""
    run = _Run(tape)
    for phase, block in zip(tape.phases, folded(tape), strict=True):
        if phase.aside:
            continue
        start = len(run.found.events)
        run.phase = phase.name
        for inner in block.blocks:
            run.play(inner, [])
        run.found.spans.append(Span(phase.name, start, len(run.found.events)))
    return run.found


class _Run:
    def __init__(self, tape: Tape):
        self.tape = tape
        self.found = Course(tape)
        self.phase = ""
        self.alive: defaultdict[int, list[int]] = defaultdict(list)
        """Of each storage of the tape the births that are alive, oldest first."""
        self.handed = handed_on(tape)
        self.waiting: defaultdict[int, dict[int, None]] = defaultdict(dict)
        """Births that are alive and handed on from layer to layer, by size, oldest first."""
        self.repeated: defaultdict[int, dict[int, None]] = defaultdict(dict)
        """All births that are alive and of a slot that stands for several layers, or handed on to one, by size."""

    def play(self, block: Stretch, passes: list[int]) -> None:
        """Go through a block as often as it runs; `passes`: which pass of each block around it this is, from the outermost."""
        for i in range(block.repeat):
            if block.blocks:
                for inner in block.blocks:
                    self.play(inner, [*passes, i])
            else:
                self._events(block, passes)

    def _events(self, block: Stretch, passes: list[int]) -> None:
        tape, found = self.tape, self.found
        for start, stop, again in _divided(block, tape.recomputations):
            layer = self._layer(block.slot, passes, again)
            for event in tape.events[start:stop]:
                if event > 0:
                    number = len(found.births)
                    found.births.append(Birth(event, layer, len(found.events), recomputed=again is not None))
                    self.alive[event].append(number)
                    if event in self.handed.makers:
                        self.waiting[tape.sizes[event]][number] = None
                    if event in self.handed.takers or (block.slot is not None and block.slot.total > 1):
                        self.repeated[tape.sizes[event]][number] = None
                    found.events.append(number + 1)
                    continue
                number = self._freed(-event, block.slot, layer, again is not None)
                if number < 0:
                    found.unmatched += tape.sizes[-event]
                    continue
                birth = found.births[number]
                birth.died = len(found.events)
                self.alive[birth.storage].remove(number)
                self.waiting[tape.sizes[birth.storage]].pop(number, None)
                self.repeated[tape.sizes[birth.storage]].pop(number, None)
                found.events.append(-number - 1)

    def _layer(self, slot: Slot | None, passes: list[int], again: Recomputation | None) -> int | None:
        """The layer of a stack in which something happens (as `locate_peak` has it)."""
        if slot is None or slot.stack is None:
            return None
        layer = slot.start
        for inner, at in zip(slot.path, passes, strict=False):
            mirrored = self.phase == BACKWARD and (again is None or (again.slot is not None and inner in again.slot.path))
            layer += inner.step * (inner.repeat - 1 - at if mirrored else at)
        return layer

    def _freed(self, storage: int, slot: Slot | None, layer: int | None, again: bool) -> int:
        """Which birth is released where the tape releases a storage, in a slot and a layer; -1 if there is none. `again`: while
        backward runs what forward had run, and in its order."""
        births, own, tape = self.found.births, self.alive[storage], self.tape
        beside = [number for number in own if births[number].layer == layer]
        if storage not in self.handed.takers and own:
            return beside[-1] if beside else own[-1]
        made, backward = tape.slots[storage], self.handed.takers.get(storage, False)
        within = made is not None and slot is not None and (made in slot.path or _layer_slot(made) is _layer_slot(slot))
        if within:  # from one pass to the next within a layer: of what forward saved backward takes the last first
            before, mirrored = layer, self.phase == BACKWARD and not backward and not again
            if beside and not mirrored:
                return beside[-1]
        else:
            before, mirrored = None if layer is None else layer + (1 if backward else -1), False
            beside = [number for number in own if births[number].layer == before]
            if beside:
                return beside[-1]
        kind = tape.components[storage], tape.forms[storage]

        def unlike(number: int) -> tuple[bool, bool, bool, int]:
            birth = births[number]
            other = tape.components[birth.storage], tape.forms[birth.storage]
            return birth.layer != before, other[1] != kind[1], other[0] != kind[0], -number if mirrored else number

        size = tape.sizes[storage]
        number = min([*beside, *(self.waiting[size] or self.repeated[size])], key=unlike, default=-1)
        if own and (number < 0 or births[number].layer != before):
            return own[-1]
        return number


def _layer_slot(slot: Slot) -> Slot | None:
    """The slot of the layers that a slot is, or lies in as a loop of theirs; None outside of all layers."""
    return next((inner for inner in reversed(slot.path) if inner.step), None)


def _divided(block: Stretch, recomputations: list[Recomputation]) -> list[tuple[int, int, Recomputation | None]]:
    """The events of a block in parts that run again what forward had run, or do not."""
    parts: list[tuple[int, int, Recomputation | None]] = []
    at = block.start
    for again in recomputations:
        start, stop = max(again.start, at), min(again.stop, block.stop)
        if start >= stop:
            continue
        if start > at:
            parts.append((at, start, None))
        parts.append((start, stop, again))
        at = stop
    if at < block.stop or not parts:
        parts.append((at, block.stop, None))
    return parts
