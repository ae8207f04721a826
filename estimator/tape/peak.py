"""Where a phase reaches its peak, and which tensors are alive there."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import NamedTuple

from estimator.tape.handed import BACKWARD, handed_on
from estimator.tape.replay import Stretch
from estimator.tape.slots import Slot
from estimator.tape.tape import LOSS, Form, Recomputation, Tape

OPTIMIZER, HEAD, OUTSIDE = "optimizer", "head and loss", "outside the layers"


class Place(NamedTuple):
    """What was running: a layer (from 0) of the `layers` of a stack, or a `part` outside of all; and its operation.

    `recomputed` if backward was running again what forward had run. All is None where a phase allocates nothing above what it
    starts with.
    """

    part: str | None
    layer: int | None
    layers: int | None
    operation: str | None
    recomputed: bool


class TensorGroup(NamedTuple):
    """What tensors have in common that are counted together. `part` is their stack of layers, or None outside of all."""

    component: str
    operation: str
    part: str | None
    form: Form | None
    each_bytes: int


Kind = tuple[str, str, str | None, Form | None, int]
"""A `TensorGroup` as a plain tuple, which is faster to make."""


def locate_peak(tape: Tape, at: int, block: Stretch) -> Place:
    """Where the phase number `at`, replayed in these blocks, reaches its peak."""
    if not block.top:
        return Place(None, None, None, None, False)
    phase, stays, leaf = tape.phases[at].name, [], block
    while leaf.blocks:
        leaf = leaf.blocks[leaf.crest]
        stays.append(leaf)
    event = leaf.start + leaf.crest - 1
    storage, slot = tape.events[event], leaf.slot
    operation = tape.operations[storage]
    again = next((r for r in tape.recomputations if r.start <= event < r.stop), None)
    if slot is None or slot.stack is None:
        part = OPTIMIZER if phase == "optimizer_step" else HEAD if tape.components[storage] == LOSS else _outside(tape, at, event)
        return Place(part, None, None, operation, again is not None)
    layer = slot.start
    for inner, stay in zip(slot.path, stays, strict=False):
        last = stay.net > 0
        if phase == BACKWARD and (again is None or _contains(again, inner)):
            last = not last
        layer += inner.step * (inner.repeat - 1) * last
    return Place(slot.stack.label, layer, slot.stack.layers, operation, again is not None)


def _contains(again: Recomputation, slot: Slot) -> bool:
    """Whether what runs again lies in this slot: its passes come from last to first. Those of slots inside it come in order."""
    return again.slot is not None and slot in again.slot.path


def _outside(tape: Tape, at: int, event: int) -> str:
    """Where among the stacks an event outside of them is."""
    start = tape.phases[at].start
    stop = tape.phases[at + 1].start if at + 1 < len(tape.phases) else len(tape.events)
    stacks = [(m.start, m.slot.stack.label) for m in tape.marks if m.slot and m.slot.stack and start <= m.start < stop]
    if not stacks:
        return OUTSIDE
    follows = bisect_right(stacks, event, key=lambda stack: stack[0])
    before, after = ("after", "before") if tape.phases[at].name == BACKWARD else ("before", "after")
    return f"{after} {stacks[follows - 1][1]}" if follows else f"{before} {stacks[0][1]}"


def tensors(tape: Tape, alive: list[int]) -> dict[TensorGroup, int]:
    """How many tensors of each kind are alive, given how often each storage is: the kinds' bytes sum to the live bytes."""
    found: dict[Kind, int] = {}
    for storage, times in enumerate(_settled(tape, alive) if min(alive) < 0 else alive):
        if times:
            kind = _kind(tape, storage)
            found[kind] = found.get(kind, 0) + times
    return {TensorGroup(*kind): count for kind, count in found.items() if count}


def _kind(tape: Tape, storage: int) -> Kind:
    slot = tape.slots[storage]
    part = None if slot is None or slot.stack is None else slot.stack.label
    return tape.components[storage], tape.operations[storage], part, tape.forms[storage], tape.sizes[storage]


def _settled(tape: Tape, alive: list[int]) -> list[int]:
    """How often each storage is alive where layers release what the layer before them made.

    The tape has what came to the first layer released in each, more often than it was made. All but the first release what
    layers hand on: it is as large, a gradient if the other is one, and else as alike as there is.
    """
    handed, settled = handed_on(tape), list(alive)
    gradients = {storage for storage, gradient in [*handed.makers.items(), *handed.takers.items()] if gradient}

    def unlike(maker: int, taker: int) -> tuple[bool, ...]:
        told = (tape.components, tape.forms, tape.operations)
        return ((maker in gradients) != (taker in gradients), *(said[maker] != said[taker] for said in told))

    makers = [storage for storage in handed.makers if alive[storage] > 0]
    for taker in [storage for storage, times in enumerate(alive) if times < 0]:
        others = [maker for maker in makers if settled[maker] > 0 and tape.sizes[maker] == tape.sizes[taker]]
        others.sort(key=partial(unlike, taker=taker))
        for other in others:
            moved = min(settled[other], -settled[taker])
            settled[other] -= moved
            settled[taker] += moved
    return settled
