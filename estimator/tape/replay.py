"""Read a tape: the live bytes at every event, the peak of each phase, and what is alive at the peak.

A slot that stands for n equal layers is not unrolled. If one of its passes changes the live bytes by d and rises to p
above its start, then n passes change them by n d, and rise to p above the start of the first pass or of the last,
whichever starts higher: (n - 1) max(d, 0) + p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from estimator.tape.slots import Slot
from estimator.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class PhaseBytes:
    """One occurrence of a phase: live bytes when it starts, at its peak and when it ends."""

    name: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int


@dataclass(frozen=True)
class Replay:
    """What a tape says: its phases in order, each also as blocks, and the highest of their peaks (the first of several)."""

    tape: Tape
    phases: list[PhaseBytes]
    blocks: list[Stretch]
    peak: PhaseBytes

    @cached_property
    def alive(self) -> list[int]:
        """How often each storage is alive at the highest peak, counted when it is asked for.

        A storage of a slot that stands for n layers is alive up to n times. It can be less than none: where a layer frees what
        the layer before it made, the first frees something else, and the tape has that freed n times.
        """
        at = self.phases.index(self.peak)
        ranges = [r for block in self.blocks[:at] for r in _whole(block, 1)] + list(_to_crest(self.blocks[at]))
        return _alive(self.tape, ranges)


class Stretch:
    """Events `start` to `stop`, or blocks in a row, that run `repeat` times.

    One pass changes the live bytes by `net` and rises to `top` above its start; `crest` is the number of events, or the
    index of the block, at which it does.
    """

    __slots__ = ("blocks", "crest", "net", "repeat", "slot", "start", "stop", "top")

    def __init__(self, repeat: int, start: int = 0, stop: int = 0, slot: Slot | None = None):
        self.repeat, self.start, self.stop, self.slot = repeat, start, stop, slot
        self.blocks: list[Stretch] = []
        self.net = self.top = self.crest = 0

    def scan(self, events: list[int], sizes: list[int]) -> Stretch:
        """Read the events of a block that holds no others."""
        live = top = crest = 0
        for i, event in enumerate(events[self.start : self.stop], 1):
            if event > 0:
                live += sizes[event]
                if live > top:
                    top, crest = live, i
            else:
                live -= sizes[-event]
        self.net, self.top, self.crest = live, top, crest
        return self

    def append(self, block: Stretch) -> None:
        """Let another block follow."""
        top = self.net + (block.repeat - 1) * max(block.net, 0) + block.top
        if top > self.top:
            self.top, self.crest = top, len(self.blocks)
        self.blocks.append(block)
        self.net += block.repeat * block.net


def replay(tape: Tape) -> Replay:
    """Every phase of the run, in order."""
    blocks = folded(tape)
    phases, live = [], 0
    for phase, block in zip(tape.phases, blocks, strict=True):
        phases.append(PhaseBytes(phase.name, live, live + block.top, live + block.net))
        live += block.net
    peak = max(phases[1:] + phases[:1], key=lambda p: p.peak_bytes)  # what comes before the step is the last of equal ones
    return Replay(tape, phases, blocks, peak)


def folded(tape: Tape, sizes: list[int] | None = None) -> list[Stretch]:
    """Each phase as nested stretches of events; `sizes` to count of its storages, if not their own."""
    bounds = [phase.start for phase in tape.phases[1:]] + [len(tape.events) if tape.stop is None else tape.stop]
    counted = tape.sizes if sizes is None else sizes
    return [_fold(tape, counted, phase.start, stop) for phase, stop in zip(tape.phases, bounds, strict=True)]


def left(tape: Tape, phases: list[Stretch]) -> list[int]:
    """How often each storage is alive after these phases, as `Replay.alive` counts them."""
    return _alive(tape, [reach for phase in phases for reach in _whole(phase, 1)])


def leaves(block: Stretch) -> Iterator[Stretch]:
    """The stretches of events within a block, in order."""
    if not block.blocks:
        yield block
    for inner in block.blocks:
        yield from leaves(inner)


def _fold(tape: Tape, sizes: list[int], start: int, stop: int) -> Stretch:
    """The events of a phase as nested blocks, one per stay in a slot."""
    root = Stretch(1)
    stays: list[tuple[Slot, Stretch]] = []

    def leave(depth: int) -> None:
        while len(stays) > depth:
            _, block = stays.pop()
            (stays[-1][1] if stays else root).append(block)

    marks = [mark for mark in tape.marks if start <= mark.start < stop]
    for i, (begin, slot) in enumerate(marks):
        end = marks[i + 1].start if i + 1 < len(marks) else stop
        path = slot.path if slot else ()
        same = 0
        while same < min(len(stays), len(path)) and stays[same][0] is path[same]:
            same += 1
        leave(same)  # leaving a slot, even for nothing, ends its stay
        stays += [(inner, Stretch(inner.repeat)) for inner in path[same:]]
        if begin != end:
            (stays[-1][1] if stays else root).append(Stretch(1, begin, end, slot).scan(tape.events, sizes))
    leave(0)
    return root


def _whole(block: Stretch, times: int) -> Iterator[tuple[int, int, int]]:
    """Ranges of events and how often each runs: `times` whole passes of all repeats of a block."""
    times *= block.repeat
    if not block.blocks:
        yield block.start, block.stop, times
    for inner in block.blocks:
        yield from _whole(inner, times)


def _to_crest(block: Stretch) -> Iterator[tuple[int, int, int]]:
    """Ranges of events from a block's start to its crest, and how often each runs."""
    if not block.blocks:
        yield block.start, block.start + block.crest, 1
        return
    for inner in block.blocks[: block.crest]:
        yield from _whole(inner, 1)
    inner = block.blocks[block.crest]
    if inner.net > 0 and inner.repeat > 1:
        for start, stop, times in _whole(inner, 1):
            yield start, stop, times // inner.repeat * (inner.repeat - 1)
    yield from _to_crest(inner)


def _alive(tape: Tape, ranges: list[tuple[int, int, int]]) -> list[int]:
    """How often each storage is alive after these ranges of events."""
    alive = [0] * len(tape.sizes)
    for start, stop, times in ranges:
        for event in tape.events[start:stop]:
            if event > 0:
                alive[event] += times
            else:
                alive[-event] -= times
    return alive
