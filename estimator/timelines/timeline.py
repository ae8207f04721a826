"""A job's timeline: its course, read event by event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate
from pathlib import Path
from typing import Any

from estimator.contract.answer import Versions
from estimator.contract.errors import InvalidValue
from estimator.contract.job import Job
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import job_of
from estimator.pipeline.run import Run, played
from estimator.tape.tape import COMPONENTS
from estimator.timelines.answers import Timeline, TimelinePeak, TimelinePhase, TimelinePoints, TimelineTensor
from estimator.timelines.course import Birth, Course, Span, course

POINTS = 600
"""Stretches of events of which each gives a point."""
TENSORS = 1000
"""Tensors that are listed."""
MOST_TENSORS = 1_000_000
LOAD = "load"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job's step, event by event: `first` is the number of the step's first event in the course, `live` the bytes after each
    event."""

    run: Run
    course: Course
    first: int
    live: list[int]

    @property
    def spans(self) -> list[Span]:
        """The phases of the step, in the numbers of the step's events."""
        found = [span for span in self.course.spans if span.start >= self.first]
        return [Span(span.name, span.start - self.first, span.stop - self.first) for span in found]

    @property
    def peak(self) -> int:
        """The event of the course after which most is alive; the first of several."""
        events = range(max(self.first - 1, 0), len(self.live))
        return max(events, key=self.live.__getitem__)

    def name(self, birth: Birth) -> str:
        """Where and what a tensor is."""
        tape = self.course.tape
        slot, operation = tape.slots[birth.storage], tape.operations[birth.storage]
        if slot is None or slot.stack is None or birth.layer is None:
            return operation
        return f"{slot.stack.label}[{birth.layer}]{'.' if '.' in operation else ': '}{operation}"


def record(job: Job | Mapping[str, Any] | str | Path, on: str | None = None, allow_files: bool = True) -> Recorded:
    """Simulate a job and go through its step. Raises what `estimate` raises."""
    run = played(job_of(job, on), allow_files)
    return recorded(run)


def recorded(run: Run) -> Recorded:
    """The step of a job that was simulated. Loading is left out, unless most is alive in it."""
    found = course(run.simulation.build.tape)
    live = list(accumulate(map(found.size, found.events)))
    loaded = found.spans[0].stop if found.spans and found.spans[0].name == LOAD else 0
    return Recorded(run, found, 0 if run.simulation.phases.peak.name == LOAD else loaded, live)


def timeline(
    job: Job | Mapping[str, Any] | str | Path,
    *,
    on: str | None = None,
    tensors: int = TENSORS,
    allow_files: bool = True,
) -> Timeline:
    """Live bytes over a step in its steady state (the second: the optimizer has its states), event by event.

    `job`: as `estimate` takes it, or the path of a framework's file. `on`: hardware such as 2xA100-80GB, in place of the job's
    own. `tensors`: so many are listed one by one, the largest. The highest of the timeline is the answer's `peak_bytes`.
    Raises what `estimate` raises.
    """
    return timeline_of(record(job, on, allow_files), tensors)


def timeline_of(step: Recorded, tensors: int = TENSORS) -> Timeline:
    """The timeline of a step that was recorded."""
    if not 0 <= tensors <= MOST_TENSORS:
        raise InvalidValue(f"write a number from 0 to {MOST_TENSORS}, not {tensors}", "tensors")
    run, memory = step.run, step.run.simulation
    births = [birth for birth in step.course.births if birth.died is None or birth.died >= step.first]
    sizes = step.course.tape.sizes
    largest = nsmallest(tensors, births, key=lambda birth: (-sizes[birth.storage], birth.born))
    points = _points(step)
    at = points.events.index(step.peak - step.first)
    place = memory.why.peak
    return Timeline(
        phases=list(_phases(step)),
        peak=TimelinePeak(
            part=place.part,
            layer=place.layer,
            layers=place.layers,
            operation=place.operation,
            recomputed=place.recomputed,
            event=points.events[at],
            phase=place.phase,
            bytes=points.total[at],
            components={name: values[at] for name, values in points.components.items() if values[at]},
        ),
        points=points,
        tensors=[_tensor(step, birth) for birth in largest],
        tensors_left_out=len(births) - len(largest),
        events=len(step.live) - step.first,
        capacity_bytes=run.card.memory_bytes,
        overhead_bytes=run.beside.total_bytes,
        job=run.job.model_dump(mode="json"),
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _phases(step: Recorded) -> Iterator[TimelinePhase]:
    for span in step.spans:
        start, stop = span.start + step.first, span.stop + step.first
        before = step.live[start - 1] if start else 0
        yield TimelinePhase(
            name=span.name,
            start=span.start,
            stop=span.stop,
            start_bytes=before,
            peak_bytes=max(before, *step.live[start:stop]) if start < stop else before,
            end_bytes=step.live[stop - 1] if stop else 0,
        )


def _points(step: Recorded) -> TimelinePoints:
    """What is alive, by component, where it counts: before the step (event -1), at its end, and at the highest event of each of
    `POINTS` stretches and of each phase."""
    first, live = step.first, step.live
    chosen = {first - 1, step.peak, len(live) - 1}
    for span in step.spans:
        start, stop = span.start + first, span.stop + first
        length = max(1, -(-(len(live) - first) // POINTS))
        for at in range(start, stop, length):
            chosen.add(max(range(at, min(at + length, stop)), key=live.__getitem__))
    tape, births = step.course.tape, step.course.births
    now = dict.fromkeys(COMPONENTS, 0)
    columns: dict[str, list[int]] = {name: [] for name in COMPONENTS}
    events: list[int] = []
    names: list[str] = []
    total: list[int] = []
    for number in range(-1, len(live)):
        if number >= 0:
            event = step.course.events[number]
            now[tape.components[births[abs(event) - 1].storage]] += step.course.size(event)
        if number in chosen:
            events.append(number - first)
            names.append(step.name(births[abs(step.course.events[number]) - 1]) if number >= first else LOAD)
            total.append(live[number] if number >= 0 else 0)
            for name, column in columns.items():
                column.append(now[name])
    components = {name: row for name, row in columns.items() if any(row)}
    return TimelinePoints(events=events, names=names, total=total, components=components)


def _tensor(step: Recorded, birth: Birth) -> TimelineTensor:
    tape, first = step.course.tape, step.first
    slot, form = tape.slots[birth.storage], tape.forms[birth.storage]
    phase = next(span.name for span in step.course.spans if span.start <= birth.born < span.stop)
    return TimelineTensor(
        name=step.name(birth),
        component=tape.components[birth.storage],
        operation=tape.operations[birth.storage],
        part=None if slot is None or slot.stack is None else slot.stack.label,
        layer=birth.layer,
        shape=None if form is None else list(form[0]),
        dtype=None if form is None else form[1].name,
        bytes=tape.sizes[birth.storage],
        phase=phase,
        born=max(birth.born - first, 0),
        died=None if birth.died is None else birth.died - first,
        recomputed=birth.recomputed,
    )
