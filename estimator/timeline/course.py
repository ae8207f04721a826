"""Every allocation and release of a run, layer by layer, from a tape on which one layer stands for many.

`tape/replay.py` counts a slot that stands for n layers by arithmetic; here each of its passes is gone through, and each tensor
gets the layer that it is of. A layer frees what the layer before it made (its input, the gradient that came to it), while the tape
has the first layer's freed each time: later passes free what is alike and alive (as `runtime/reserved.py` does for blocks).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from estimator.tape.peak import BACKWARD
from estimator.tape.replay import Stretch, folded
from estimator.tape.tape import Recomputation, Slot, Tape


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
        self.by_size: defaultdict[int, dict[int, None]] = defaultdict(dict)
        """Births that are alive and of a slot that stands for several layers, by size, oldest first."""

    def play(self, block: Stretch, passes: list[int]) -> None:
        """Go through a block as often as it runs; `passes`: which pass of each block around it this is, from the outermost."""
        for i in range(block.repeat):
            if block.blocks:
                for inner in block.blocks:
                    self.play(inner, [*passes, i])
            else:
                self._events(block, passes)

    def _events(self, block: Stretch, passes: list[int]) -> None:
        tape, found, begun = self.tape, self.found, len(self.found.events)
        parts = [(block.start, block.stop, None)]
        if tape.recomputations:
            parts = _divided(block, tape.recomputations)
        for start, stop, again in parts:
            layer = self._layer(block.slot, passes, again)
            for event in tape.events[start:stop]:
                if event > 0:
                    number = len(found.births)
                    found.births.append(Birth(event, layer, len(found.events), recomputed=again is not None))
                    self.alive[event].append(number)
                    self._list(number)
                else:
                    number = self._freed(-event, layer, begun)
                    if number < 0:
                        found.unmatched += tape.sizes[-event]
                        continue
                    found.births[number].died = len(found.events)
                    self._list(number, False)
                found.events.append(number + 1 if event > 0 else -number - 1)

    def _list(self, number: int, alive: bool = True) -> None:
        storage = self.found.births[number].storage
        slot = self.tape.slots[storage]
        if slot is not None and slot.total > 1:
            if alive:
                self.by_size[self.tape.sizes[storage]][number] = None
            else:
                self.by_size[self.tape.sizes[storage]].pop(number)

    def _layer(self, slot: Slot | None, passes: list[int], again: Recomputation | None) -> int | None:
        """The layer of a stack in which something happens (as `locate_peak` has it)."""
        if slot is None or slot.stack is None:
            return None
        layer = slot.start
        for inner, at in zip(slot.path, passes, strict=False):
            mirrored = self.phase == BACKWARD and (again is None or (again.slot is not None and inner in again.slot.path))
            layer += inner.step * (inner.repeat - 1 - at if mirrored else at)
        return layer

    def _freed(self, storage: int, layer: int | None, begun: int) -> int:
        """Which birth of a storage is released; of another that is as large where all of it are gone; -1 if there is none."""
        births, stack = self.found.births, self.alive[storage]
        if stack:
            at = -1
            if layer is not None and births[stack[-1]].layer != layer and births[stack[0]].layer == layer:
                at = 0
            return stack.pop(at)
        tape = self.tape
        alike = list(self.by_size[tape.sizes[storage]])
        earlier = [n for n in alike if births[n].born < begun]
        if not alike:
            return -1
        kind = tape.components[storage], tape.forms[storage]

        def unlike(number: int) -> tuple[bool, bool, int]:
            other = births[number].storage
            return tape.components[other] != kind[0], tape.forms[other] != kind[1], -number

        number = min(earlier or alike, key=unlike)
        self.alive[births[number].storage].remove(number)
        return number


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
