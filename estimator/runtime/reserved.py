"""What the caching allocator holds in the course of a run that is on a tape.

The tape is replayed into the allocator, every layer of it: the model is loaded, then come two steps. In the first the optimizer
makes its states; the second finds them there, and gradients gone.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from estimator.runtime.allocator import SMALL, SMALL_SEGMENT, Event, ExpandableAllocator
from estimator.runtime.played import PlayedAllocator
from estimator.tape.lifetimes import uncollected
from estimator.tape.replay import Stretch, folded
from estimator.tape.tape import OPTIMIZER_STATE, Slot, Tape

STEPS = 2
NONE: list[int] = []
BETWEEN = ("evaluate", "generate", "score")
"""Phases that run in the thread in which forward runs."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """`reserved_bytes`: with every cached block. `held_bytes`: without the segments that are wholly free at the time."""

    reserved_bytes: int
    held_bytes: int


KEPT = 64
"""How many runs are remembered with what was found of them."""
_known: dict[tuple[bytes, int, bool], Reserved] = {}


class MoreThanAsked(Exception):
    """What cannot be given back is more than was asked about."""


def reserved(tape: Tape, workspace: int, expandable: bool = False, most: int | None = None) -> Reserved:
    """Replay a run into the allocator. `workspace`: bytes that cuBLAS keeps from the first product of a thread on. Raises
    `MoreThanAsked` as soon as more than `most` bytes cannot be given back, unless all is known already.

    Runs that allocate and free the same, as a replica does whatever the number of the others, are replayed once."""
    question = _question(tape), workspace, expandable
    with uncollected():
        found = _known.get(question) or _reserved(tape, workspace, expandable, most)
    if len(_known) >= KEPT:
        _known.clear()
    _known[question] = found
    return found


def _question(tape: Tape) -> bytes:
    """All that the allocator's course depends on, in few bytes."""
    place = {slot: number for number, slot in enumerate(dict.fromkeys(one for mark in tape.marks for one in _path(mark.slot)))}
    slots = [(one.repeat, one.total, None if one.parent is None else place[one.parent]) for one in place]
    marks = [(mark.start, None if mark.slot is None else place[mark.slot]) for mark in tape.marks]
    phases = [(phase.start, phase.name, phase.aside) for phase in tape.phases]
    numbers = b"".join(array("q", one).tobytes() for one in (tape.events, tape.sizes))
    return blake2b(numbers + repr((tape.components, slots, marks, phases, tape.stop)).encode(), digest_size=16).digest()


def _path(slot: Slot | None) -> tuple[Slot, ...]:
    return () if slot is None else slot.path


def _reserved(tape: Tape, workspace: int, expandable: bool, most: int | None) -> Reserved:
    small = _small_segments(tape)
    run = _Run(tape, expandable, None if most is None else most - small)
    course = zip(tape.phases, folded(tape), strict=True)
    phases = [(phase.name, fold.blocks) for phase, fold in course if not phase.aside]
    loading = [block for name, blocks in phases if name == "load" for block in blocks]
    run.play(loading, skipped=OPTIMIZER_STATE)
    threads = set()
    for step in range(STEPS):
        for name, blocks in phases:
            if name == "load":
                continue
            thread = "forward" if name in BETWEEN else name
            if thread != "optimizer_step" and thread not in threads:
                threads.add(thread)
                run.allocator.play([(workspace, [], NONE)])
            if name == "optimizer_step" and not step:
                run.play(loading, only=OPTIMIZER_STATE)
            run.play(blocks)
        if step < STEPS - 1:
            run.end_step()
    return Reserved(run.allocator.reserved + small, run.allocator.highest + small)


def _small_segments(tape: Tape) -> int:
    """Bytes of the segments of small blocks, which pack well, so that their sum decides."""
    most = live = 0
    for phase in folded(tape, [size if size <= SMALL else 0 for size in tape.sizes]):
        most = max(most, live + phase.top)
        live += phase.net
    return -(-most // SMALL_SEGMENT) * SMALL_SEGMENT


class _Run:
    """The allocator and what is alive in it: a stack of blocks per storage of the tape, one block per pass of its slot."""

    def __init__(self, tape: Tape, expandable: bool, most: int | None):
        self.tape, self.most = tape, most
        self.allocator: PlayedAllocator | ExpandableAllocator = ExpandableAllocator() if expandable else PlayedAllocator()
        self.alive: defaultdict[int, list[int]] = defaultdict(list)
        self.born: set[int] = set()
        """Storages of the steps, alive or not."""
        self.kept: defaultdict[Slot | None, list[int]] = defaultdict(list)
        """Storages that a slot's earlier stretches left alive."""
        self.large: dict[Stretch, list[int]] = {}
        """Events of a stretch that reach the pool of large blocks."""
        self.events: dict[Stretch, list[Event]] = {}
        """The same, as the allocator plays them."""
        self.partners: dict[Stretch, dict[int, int]] = {}
        self.freed: dict[Stretch, list[int]] = {}
        """What the first pass of a stretch freed."""

    def play(self, blocks: list[Stretch], only: str | None = None, skipped: str | None = None) -> None:
        """Replay blocks in a row: all that is allocated in them, or what is counted as `only`, or is not `skipped`."""
        for block in blocks:
            if not block.blocks and block not in self.large:
                sizes = self.tape.sizes
                self.large[block] = [e for e in self.tape.events[block.start : block.stop] if sizes[abs(e)] > SMALL]
            for turn in range(block.repeat):
                if block.blocks:
                    self.play(block.blocks, only, skipped)
                    if not turn and block.repeat > 1 and len(block.blocks) > 1 and only is None and skipped is None:
                        self._pair_period(block)
                elif self.large[block]:
                    self._pass(block, only, skipped)

    def _pass(self, block: Stretch, only: str | None, skipped: str | None) -> None:
        components = self.tape.components
        if only is None and skipped is None:
            if block not in self.events:
                self.events[block] = self._played(block, self.large[block])
                self.born.update(event for event in self.large[block] if event > 0)
            wanted, events = self.large[block], self.events[block]
        else:
            wanted = [
                e for e in self.large[block] if e < 0 or ((only is None or components[e] == only) and components[e] != skipped)
            ]
            events = self._played(block, wanted)
        first = block not in self.partners and block.slot is not None and block.slot.total > 1
        freed = self._frees(wanted) if first else []
        self.allocator.play(events)
        if self.most is not None and self.allocator.highest > self.most:
            raise MoreThanAsked
        if first:
            self.freed[block] = freed
            self.partners[block] = self._pairs(block, freed)
            self.events.pop(block, None)

    def _played(self, block: Stretch, events: list[int]) -> list[Event]:
        """Events of a stretch as the allocator plays them, with the stacks of their storages."""
        alive, sizes, partners = self.alive, self.tape.sizes, self.partners.get(block)
        if not partners:
            return [(sizes[e], alive[e], NONE) if e > 0 else (-sizes[-e], alive[-e], NONE) for e in events]
        others = {storage: alive[partner] for storage, partner in partners.items()}
        return [(sizes[e], alive[e], NONE) if e > 0 else (-sizes[-e], alive[-e], others.get(-e, NONE)) for e in events]

    def _frees(self, events: list[int]) -> list[int]:
        """What these events will free, in order: storages that are alive by then."""
        alive = {abs(event): len(self.alive[abs(event)]) for event in events}
        freed = []
        for event in events:
            if event > 0:
                alive[event] += 1
            elif alive[-event]:
                alive[-event] -= 1
                freed.append(-event)
        return freed

    def _pairs(self, block: Stretch, freed: list[int]) -> dict[int, int]:
        """What a later pass frees instead of a storage from before the first: the same of the pass before it.

        A layer's input is the output of the layer before it, and so are their gradients: of the same size and kind.
        """
        tape, alive = self.tape, self.alive
        births = dict.fromkeys(e for e in self.large[block] if e > 0)
        kept = [e for e in births if alive[e]]
        earlier = self.kept[block.slot]
        partners = {}
        for storage in freed:
            if storage in births or alive[storage]:
                continue
            alike = [e for e in (*kept, *earlier) if alive[e] and tape.sizes[e] == tape.sizes[storage]]
            alike.sort(key=lambda e: tape.components[e] != tape.components[storage])  # stable: this stretch before earlier ones
            if alike:
                partners[storage] = alike[0]
                (kept if alike[0] in kept else earlier).remove(alike[0])
        earlier += kept
        return partners

    def _pair_period(self, period: Stretch) -> None:
        """Pair anew where several kinds of layers take turns: what the first of them frees, the last of the turn before made."""
        tape, alive = self.tape, self.alive
        leaves = [one for one in _leaves(period) if one in self.freed]
        births = dict.fromkeys(e for one in leaves for e in self.large[one] if e > 0)
        kept = [e for e in births if alive[e]]
        for one in leaves:
            for storage in self.freed[one]:
                if storage in births or alive[storage]:
                    continue
                alike = [e for e in kept if tape.sizes[e] == tape.sizes[storage]]
                alike.sort(key=lambda e: tape.components[e] != tape.components[storage])  # stable
                if alike:
                    self.partners[one][storage] = alike[0]
                    kept.remove(alike[0])
            self.events.pop(one, None)

    def end_step(self) -> None:
        """What a step leaves behind is freed: the gradients."""
        sizes, alive = self.tape.sizes, self.alive
        self.allocator.play((-sizes[one], alive[one], NONE) for one in self.born for _ in range(len(alive[one])))


def _leaves(block: Stretch) -> Iterator[Stretch]:
    """The stretches of events within a block, in order."""
    if not block.blocks:
        yield block
    for inner in block.blocks:
        yield from _leaves(inner)
