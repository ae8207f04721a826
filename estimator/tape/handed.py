"""What layers hand on: a layer's output, which the next one releases, and the gradient that comes back.

A tape on which one layer stands for many has the tensor that came to the first of them released in each, and that which the last
hands on made in each. Who reads what is alive finds by this which of them are each other's.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from estimator.tape.tape import Mark, Tape

BACKWARD = "backward"


class HandedOn(NamedTuple):
    """Storages of a tape that layers hand on: `makers` are made by each layer and released once, outside of it; `takers` are
    made once and released in each layer, which is true of the first alone. Of each: whether it is a gradient, handed on from
    the last layer to the first."""

    makers: dict[int, bool]
    takers: dict[int, bool]


def handed_on(tape: Tape) -> HandedOn:
    """What layers hand on, by how often the slots stand in which a storage is made and released."""
    stop = len(tape.events) if tape.stop is None else tape.stop
    again = bytearray(len(tape.events))
    for one in tape.recomputations:
        again[one.start : one.stop] = b"\1" * (one.stop - one.start)
    makers, takers, phases = dict[int, bool](), dict[int, bool](), iter([*tape.phases[1:], None])
    gradients, phase, next_phase = set[int](), tape.phases[0], next(phases)
    for mark, after in pairwise([*tape.marks, Mark(stop, None)]):
        while next_phase is not None and mark.start >= next_phase.start:
            phase, next_phase = next_phase, next(phases)
        here = mark.slot.total if mark.slot else 1
        for at, event in enumerate(tape.events[mark.start : after.start], mark.start):
            if event > 0:
                if phase.name == BACKWARD and not again[at]:
                    gradients.add(event)
                continue
            slot = tape.slots[-event]
            made = slot.total if slot else 1
            if made > here:
                makers[-event] = -event in gradients
            elif made < here:
                takers[-event] = -event in gradients
    return HandedOn(makers, takers)
