"""Which tensor an allocation was that failed: by its size among the allocations of a run, and by what was allocated then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from estimator.measured.answers import Culprit
from estimator.measured.oom import segment
from estimator.measured.record import Amount
from estimator.tape.tape import OPTIMIZER_STATE
from estimator.timelines.course import Birth
from estimator.timelines.timeline import LOAD, Recorded

FIRST, LATER = "first", "later"
UNLIKELY = 1 << 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """An allocation of the run: where, and what is allocated before it."""

    birth: Birth
    step: Literal["load", "first", "later"]
    phase: str
    allocated_bytes: int


def candidates(step: Recorded) -> Iterator[Candidate]:
    """Every allocation: while the model is loaded, in the first step, and in a later one.

    In the first step the optimizer has no states yet; it makes them one by one when it steps, beside parameters and gradients.
    """
    course, sizes = step.course, step.course.tape.sizes
    components = course.tape.components
    states = [one for one in course.births if components[one.storage] == OPTIMIZER_STATE and _loaded(step, one)]
    made = sum(sizes[one.storage] for one in states)
    live = without = 0
    stepped = False
    for span in course.spans:
        for number in range(span.start, span.stop):
            event = course.events[number]
            birth = course.births[abs(event) - 1]
            is_state = span.name == LOAD and components[birth.storage] == OPTIMIZER_STATE
            if event > 0 and span.name == LOAD and not is_state:
                yield Candidate(birth, "load", LOAD, without)
            elif event > 0 and not is_state:
                yield Candidate(birth, "later", span.name, live)
                if not stepped:
                    yield Candidate(birth, "first", span.name, live - made)
            live = step.live[number]
            if not is_state:
                without += course.size(event)
        if span.name == "backward":
            now = live - made
        if span.name == "optimizer_step" or (span is course.spans[-1] and states):
            stepped = True
    now = step.live[-1] - made if step.live else 0
    for birth in states:
        yield Candidate(birth, "first", "optimizer_step", now)
        now += sizes[birth.storage]


def _loaded(step: Recorded, birth: Birth) -> bool:
    first = step.course.spans[0]
    return first.name == LOAD and birth.born < first.stop


@dataclass(frozen=True, slots=True)
class Found:
    """The nearest allocation of the size, and by how much its level is below that of the record (negative: above)."""

    culprit: Culprit
    difference_bytes: int


def culprit(step: Recorded, requested: Amount, allocated: int | None) -> Found | None:
    """The allocation of that size at which what is allocated is nearest to the record; the highest where the record does not say.

    None where the job has no allocation of that size.
    """
    sizes = step.course.tape.sizes
    fitting = {size for size in set(sizes) if size and abs(segment(size) - requested.bytes) <= requested.within}
    alike = [one for one in candidates(step) if sizes[one.birth.storage] in fitting]
    if not alike:
        return None

    def far(one: Candidate) -> int:
        return -one.allocated_bytes if allocated is None else abs(allocated - one.allocated_bytes)

    best = min(alike, key=far)
    kinds = Counter(_kind(step, one) for one in alike if one.step == best.step)
    difference = 0 if allocated is None else allocated - best.allocated_bytes
    return Found(_described(step, best, kinds[_kind(step, best)]), difference)


def _kind(step: Recorded, one: Candidate) -> tuple[str, str, int]:
    tape, storage = step.course.tape, one.birth.storage
    return tape.operations[storage], tape.components[storage], tape.sizes[storage]


def _described(step: Recorded, one: Candidate, count: int) -> Culprit:
    tape, storage = step.course.tape, one.birth.storage
    slot, form = tape.slots[storage], tape.forms[storage]
    return Culprit(
        name=step.name(one.birth),
        component=tape.components[storage],
        operation=tape.operations[storage],
        part=None if slot is None or slot.stack is None else slot.stack.label,
        layer=one.birth.layer,
        shape=None if form is None else list(form[0]),
        dtype=None if form is None else form[1].name,
        bytes=tape.sizes[storage],
        phase=one.phase,
        step=one.step,
        allocated_bytes=one.allocated_bytes,
        count=count,
    )
