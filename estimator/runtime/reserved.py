"""What the caching allocator holds in the course of a run that is on a tape.

The tape is replayed into the allocator, every layer of it (`runtime/allocation.py`). What was found of a run is remembered.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b

from estimator.runtime.allocation import Allocation, OutOfMemory
from estimator.runtime.allocator import SMALL, SMALL_SEGMENT, SPLIT
from estimator.tape.lifetimes import uncollected
from estimator.tape.replay import folded
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class Reserved:
    """`reserved_bytes`: the most, with every cached block. `held_bytes`: the most without the segments that are wholly free."""

    reserved_bytes: int
    held_bytes: int


LARGEST = 2**63
"""Bytes from which on no computer addresses a storage; a job may still ask for one, and does not fit."""
KEPT = 64
"""How many runs are remembered with what was found of them."""
_known: dict[tuple[bytes, int, bool, int | None], Reserved | int] = {}
"""Of a run that is out of memory the bytes that it needs."""


def reserved(tape: Tape, workspace: int, expandable: bool = False, room: int | None = None) -> Reserved:
    """Replay a run into the allocator. `workspace`: bytes that cuBLAS keeps from the first product of a thread on. `room`: bytes
    that there are for the allocator, where that is limited. Raises `OutOfMemory`.

    Runs that allocate and free the same, as a replica does whatever the number of the others, are replayed once."""
    question = _question(tape), workspace, expandable, room
    found = _known.get(question)
    if found is None:
        with uncollected():
            found = _played(tape, workspace, expandable, room)
        if len(_known) >= KEPT:
            _known.clear()
        _known[question] = found
    if isinstance(found, int):
        raise OutOfMemory(found)
    return found


def _played(tape: Tape, workspace: int, expandable: bool, room: int | None) -> Reserved | int:
    small = _small_segments(tape)
    run = Allocation(tape, expandable, None if room is None else room - small)
    try:
        run.steps(workspace)
    except OutOfMemory as error:
        return error.needed_bytes + small
    finally:
        run.close()
    most = run.most + small
    return Reserved(most if room is None else min(most, room), run.highest + small)


def _question(tape: Tape) -> bytes:
    """All that the allocator's course depends on, in few bytes."""
    place = {slot: number for number, slot in enumerate(dict.fromkeys(one for mark in tape.marks for one in _path(mark.slot)))}
    slots = [(one.repeat, one.total, None if one.parent is None else place[one.parent]) for one in place]
    marks = [(mark.start, None if mark.slot is None else place[mark.slot]) for mark in tape.marks]
    phases = [(phase.start, phase.name, phase.aside) for phase in tape.phases]
    if max(tape.sizes, default=0) < LARGEST:
        numbers = b"".join(array("q", one).tobytes() for one in (tape.events, tape.sizes))
    else:
        numbers = repr((tape.events, tape.sizes)).encode()
    return blake2b(
        numbers + repr((tape.components, tape.streams, sorted(tape.late), slots, marks, phases, tape.stop)).encode(),
        digest_size=16,
    ).digest()


def _path(slot: Slot | None) -> tuple[Slot, ...]:
    return () if slot is None else slot.path


def held_if_grown(tape: Tape, workspace: int) -> tuple[int, int]:
    """The least and the most that cannot be given back of segments that grow, in bytes, known without a replay into the
    allocator: blocks in use, each larger than was asked for by at most what is not split off."""
    small = _small_segments(tape)
    threads = len({phase.name for phase in tape.phases})
    late = max((tape.sizes[one] for one, name in tape.streams.items() if name in tape.late), default=0)
    most = _most_alive(tape, [size + SPLIT if size > SMALL else 0 for size in tape.sizes]) + threads * (workspace + SPLIT) + late
    return small + _most_alive(tape, [size if size > SMALL else 0 for size in tape.sizes]), small + most


def _small_segments(tape: Tape) -> int:
    """Bytes of the segments of small blocks, which pack well, so that their sum decides."""
    return -(-_most_alive(tape, [size if size <= SMALL else 0 for size in tape.sizes]) // SMALL_SEGMENT) * SMALL_SEGMENT


def _most_alive(tape: Tape, sizes: list[int]) -> int:
    """The most bytes that are alive at once, of storages that count so many each."""
    most = live = 0
    for phase in folded(tape, sizes):
        most = max(most, live + phase.top)
        live += phase.net
    return most
