"""A run that is on a tape, layer by layer, as the caching allocator has it.

The model is loaded, then come two steps. In the first the optimizer makes its states; the second finds them there, and gradients
gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import groupby
from operator import itemgetter

from estimator.runtime.allocator import FIRST, LAST, SMALL, Event, ExpandableAllocator
from estimator.runtime.played import PlayedAllocator
from estimator.tape.handed import BACKWARD
from estimator.tape.replay import Stretch, folded, leaves, left
from estimator.tape.tape import OPTIMIZER_STATE, Tape

STEPS = 2
LOAD = "load"
BETWEEN = ("evaluate", "generate", "score")
"""Phases that run in the thread in which forward runs."""


class OutOfMemory(Exception):
    """The driver has no segment left though all that is wholly free was given back. `needed_bytes`: with the one asked for."""

    def __init__(self, needed_bytes: int):
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


class Allocation:
    """The allocator and what is alive in it: of each storage of the tape its blocks, one for each pass of its slot, oldest first.

    A layer frees what the layer before it made, its input or a gradient; the tape has what came to the first of them freed in
    each. Those storages have their blocks in common."""

    def __init__(self, tape: Tape, expandable: bool, room: int | None):
        self.tape, self.room, self.expandable = tape, room, expandable
        self.pools: dict[str, PlayedAllocator | ExpandableAllocator] = {
            name: ExpandableAllocator() if expandable else PlayedAllocator(self.take) for name in ("", *{*tape.streams.values()})
        }
        """The blocks of each stream: what one frees is not there for another."""
        self.reserved = self.most = 0
        """What was taken from the driver, and the most of it that there was at once."""
        self.highest = 0
        """The most that there was at once in segments with a block in use."""
        self.waiting = defaultdict[str, list[Event]](list)
        """What was freed of each stream whose blocks come back late, and is not back."""
        course = [(phase.name, fold) for phase, fold in zip(tape.phases, folded(tape), strict=True) if not phase.aside]
        self.names, self.phases = [name for name, _ in course], [fold for _, fold in course]
        self.made_in = {event: at for at, phase in enumerate(self.phases) for event in self._events(phase) if event > 0}
        """Of each storage the number of the phase that makes it."""
        self.same = _handed_on(tape, self.phases, self.made_in)
        self.blocks: defaultdict[int, list[int]] = defaultdict(list)
        for storage, first in self.same.items():
            self.blocks[storage] = self.blocks[first]
        self.played: dict[Stretch, list[tuple[str, list[Event]]]] = {}
        """Stretches as the allocator plays them, in runs of one stream."""

    def steps(self, workspace: int) -> None:
        """Load the model and take the steps. `workspace`: bytes that cuBLAS keeps of each thread. Raises `OutOfMemory`."""
        self.load(skipped=OPTIMIZER_STATE)
        threads = set()
        for step in range(STEPS):
            for at, name in enumerate(self.names):
                if name == LOAD:
                    continue
                thread = "forward" if name in BETWEEN else name
                if thread != "optimizer_step" and thread not in threads:
                    threads.add(thread)
                    self.on_stream("", [(workspace, [], LAST)])
                if name == "optimizer_step" and not step:
                    self.load(only=OPTIMIZER_STATE)
                self.play(at)
            if step < STEPS - 1:
                self.end_step()

    def close(self) -> None:
        """Let go of the pools, each of which knows this: without cycles all is freed at once, with no search for any."""
        self.pools.clear()

    def load(self, only: str | None = None, skipped: str | None = None) -> None:
        """Replay what loads the model: what is counted as `only`, or is not `skipped`."""
        components = self.tape.components
        for at, name in enumerate(self.names):
            if name == LOAD:
                leaves_out = {one for one in components if one == skipped or only not in (None, one)}
                self._play(at, self.phases[at], frozenset(), leaves_out)
                self.played.clear()

    def play(self, at: int) -> None:
        """Replay the phase of this number. Between backward and the optimizer's step a trainer waits for the GPU, to look at the
        loss: then all is back that comes late."""
        if self.names[at] == "optimizer_step":
            for name, freed in self.waiting.items():
                self.pools[name].play(freed)
                freed.clear()
        self._play(at, self.phases[at], frozenset())

    def _play(self, at: int, block: Stretch, made: Set[int], left_out: Set[str] = frozenset()) -> None:
        """Replay a block of a phase; `made`: what the innermost block around it that runs several times makes."""
        if block.repeat > 1:
            made = {self.same.get(event, 0) for event in self._events(block)}
        for _ in range(block.repeat):
            if block.blocks:
                for inner in block.blocks:
                    self._play(at, inner, made, left_out)
                continue
            if block not in self.played:
                events = self._as_played(at, block, made, left_out)
                self.played[block] = [(name, [event for _, event in run]) for name, run in groupby(events, itemgetter(0))]
            for name, run in self.played[block]:
                self.on_stream(name, run)

    def on_stream(self, name: str, events: Iterable[Event]) -> None:
        """Allocate and free in the pool of a stream."""
        pool = self.pools[name]
        others = sum(each.held for each in self.pools.values()) - pool.held
        pool.highest = pool.held
        pool.play(self._late(name, events) if name in self.tape.late else events)
        self.highest = max(self.highest, others + pool.highest)
        if self.expandable:  # where there is no more, pages that are free are unmapped wherever they lie
            self.most = sum(each.reserved for each in self.pools.values() if isinstance(each, ExpandableAllocator))
            if self.room is not None and self.highest > self.room:
                raise OutOfMemory(self.highest)

    def take(self, size: int) -> None:
        """Take a segment from the driver; where it has none, what is wholly free is given back first. Raises `OutOfMemory`."""
        if self.room is not None and self.reserved + size > self.room:
            self.reserved -= sum(pool.give_back() for pool in self.pools.values() if isinstance(pool, PlayedAllocator))
            if self.reserved + size > self.room:
                raise OutOfMemory(self.reserved + size)
        self.reserved += size
        self.most = max(self.most, self.reserved)

    def _late(self, name: str, events: Iterable[Event]) -> Iterator[Event]:
        """The events of a stream whose blocks come back late: of those that were freed the last is never there for the next."""
        waiting = self.waiting[name]
        for size, blocks, place in events:
            if size > 0:
                while len(waiting) > 1:
                    yield waiting.pop(0)
                yield size, blocks, place
            elif blocks:
                waiting.append((size, [blocks.pop(place)], LAST))

    def _events(self, block: Stretch) -> Iterator[int]:
        """The events of a block, each once."""
        for leaf in leaves(block):
            yield from self.tape.events[leaf.start : leaf.stop]

    def _as_played(self, at: int, block: Stretch, made: Set[int], left_out: Set[str]) -> Iterator[tuple[str, Event]]:
        """A stretch as the allocator plays it. Of several blocks the oldest is freed first where they are handed on from pass to
        pass, or the layers come in the order in which they made them; else, as backward does with forward's, the latest."""
        sizes, components, streams = self.tape.sizes, self.tape.components, self.tape.streams
        made_in, same = self.made_in, self.same
        for event in self._events(block):
            storage = abs(event)
            if sizes[storage] <= SMALL or components[storage] in left_out:
                continue
            if event > 0:
                yield streams.get(storage, ""), (sizes[storage], self.blocks[storage], LAST)
                continue
            before = made_in[storage]
            in_order = before != at and (self.names[before] == BACKWARD) == (self.names[at] == BACKWARD)
            place = FIRST if in_order or same.get(storage) in made else LAST
            yield streams.get(storage, ""), (-sizes[storage], self.blocks[storage], place)

    def end_step(self) -> None:
        """What a step leaves behind is freed: the gradients."""
        for storage, at in self.made_in.items():
            if self.names[at] != LOAD and self.tape.sizes[storage] > SMALL:
                blocks = self.blocks[storage]
                freed = [(-self.tape.sizes[storage], blocks, LAST)] * len(blocks)
                self.on_stream(self.tape.streams.get(storage, ""), freed)


def _handed_on(tape: Tape, phases: list[Stretch], made_in: Mapping[int, int]) -> dict[int, int]:
    """Large storages of the tape that are the same tensor from layer to layer, each with one that stands for all of them.

    What is freed more often than made; and what of its size the same phase makes, on the same stream, more often than is freed:
    by as many, and of the same component, if there is such."""
    sizes, components, over = tape.sizes, tape.components, left(tape, phases)

    def kind(storage: int) -> tuple[int, int, str]:
        return sizes[storage], made_in[storage], tape.streams.get(storage, "")

    makers = defaultdict(list)
    for storage, times in enumerate(over):
        if times > 0 and sizes[storage] > SMALL:
            makers[kind(storage)].append(storage)
    found: dict[int, list[int]] = {}
    for taker in [storage for storage, times in enumerate(over) if times < 0 and sizes[storage] > SMALL]:
        alike = makers[kind(taker)]
        alike.sort(key=lambda maker: (over[maker] != -over[taker], components[maker] != components[taker]))
        for maker in alike:
            if moved := min(over[maker], -over[taker]):
                over[maker] -= moved
                over[taker] += moved
                same = [*found.get(taker, [taker]), *found.get(maker, [maker])]
                found.update(dict.fromkeys(same, same))
    return {storage: same[0] for storage, same in found.items()}
