"""What the caching allocator holds in the course of a run that is on a tape.

The tape is played into the allocator, every layer of it: the model is loaded, then come two steps. In the first the optimizer
makes its states; the second finds them there, and gradients gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from estimator.runtime.allocator import SMALL_SEGMENT, Block, CachingAllocator, ExpandableAllocator
from estimator.tape.replay import Stretch, stretches
from estimator.tape.tape import OPTIMIZER_STATE, Slot, Tape

STEPS = 2
KEPT = 256
"""Runs whose result is remembered: the same question comes again."""
_known: dict[Hashable, Reserved] = {}


@dataclass(frozen=True, slots=True)
class Reserved:
    """`reserved_bytes`: with every cached block. `held_bytes`: without the segments that are wholly free at the time."""

    reserved_bytes: int
    held_bytes: int


def reserved(tape: Tape, workspace: int, expandable: bool = False) -> Reserved:
    """Play a run into the allocator. `workspace`: bytes that cuBLAS keeps from the first product of a thread on."""
    marks = tuple((mark.start, mark.slot and (mark.slot.label, mark.slot.repeat, mark.slot.total)) for mark in tape.marks)
    question = (tuple(tape.events), tuple(tape.sizes), marks, tuple(tape.phases), workspace, expandable)
    if question not in _known:
        if len(_known) == KEPT:
            _known.pop(next(iter(_known)))
        _known[question] = _play(tape, workspace, expandable)
    return _known[question]


def _play(tape: Tape, workspace: int, expandable: bool) -> Reserved:
    run = _Run(tape, expandable)
    phases = stretches(tape)
    loading = [block for name, blocks in phases if name == "load" for block in blocks]
    run.play(loading, skipped=OPTIMIZER_STATE)
    run.born.clear()
    threads = set()
    for step in range(STEPS):
        for name, blocks in phases:
            if name == "load":
                continue
            if name != "optimizer_step" and name not in threads:
                threads.add(name)
                run.allocator.malloc(workspace)
            if name == "optimizer_step" and not step:
                born, run.born = run.born, []
                run.play(loading, only=OPTIMIZER_STATE)
                run.born = born
            run.play(blocks)
        run.end_step()
    small = -(-run.allocator.small_highest // SMALL_SEGMENT) * SMALL_SEGMENT
    return Reserved(run.allocator.reserved + small, run.allocator.highest + small)


class _Run:
    """The allocator and what is alive in it: a stack of blocks per storage of the tape, one block per pass of its slot."""

    def __init__(self, tape: Tape, expandable: bool):
        self.tape = tape
        self.allocator = ExpandableAllocator() if expandable else CachingAllocator()
        self.alive: defaultdict[int, list[Block | None]] = defaultdict(list)
        self.born: list[int] = []
        self.kept: defaultdict[Slot | None, list[int]] = defaultdict(list)
        """Storages that a slot's earlier stretches left alive."""
        self.partners: dict[Stretch, dict[int, int]] = {}

    def play(self, blocks: list[Stretch], only: str | None = None, skipped: str | None = None) -> None:
        """Play blocks in a row: all that is allocated in them, or what is counted as `only`, or is not `skipped`."""
        for block in blocks:
            for _ in range(block.repeat):
                if block.blocks:
                    self.play(block.blocks, only, skipped)
                else:
                    self._events(block, only, skipped)

    def _events(self, block: Stretch, only: str | None, skipped: str | None) -> None:
        tape, alive, allocator = self.tape, self.alive, self.allocator
        sizes, components = tape.sizes, tape.components
        partners = self.partners.get(block, {})
        freed: list[int] = []
        for event in tape.events[block.start : block.stop]:
            if event > 0:
                if (only is None or components[event] == only) and components[event] != skipped:
                    alive[event].append(allocator.malloc(sizes[event]))
                    self.born.append(event)
                continue
            storage = -event
            stack = alive.get(storage) or alive.get(partners.get(storage, 0))
            if stack:
                released = stack.pop()
                if released is None:
                    allocator.small -= sizes[storage]
                else:
                    allocator.release(released)
                freed.append(storage)
        if block.slot is not None and block.slot.total > 1 and block not in self.partners:
            self.partners[block] = self._pairs(block, freed)

    def _pairs(self, block: Stretch, freed: list[int]) -> dict[int, int]:
        """What a later pass frees instead of a storage from before the first: the same of the pass before it.

        A layer's input is the output of the layer before it, and so are their gradients: of the same size and kind.
        """
        tape, alive = self.tape, self.alive
        births = dict.fromkeys(e for e in tape.events[block.start : block.stop] if e > 0)
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

    def end_step(self) -> None:
        """What a step leaves behind is freed: the gradients."""
        for storage in self.born:
            for block in self.alive.pop(storage, ()):
                if block is None:
                    self.allocator.small -= self.tape.sizes[storage]
                else:
                    self.allocator.release(block)
        self.born.clear()
