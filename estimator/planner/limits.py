"""How far a job can go: the largest or smallest value of one of its numbers with which it fits, and what is in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from estimator.contract.answer import Versions
from estimator.contract.errors import (
    Contradiction,
    InvalidJob,
    InvalidValue,
    NotModelled,
    WillItFitError,
)
from estimator.contract.job import Job
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import job_of
from estimator.families.spec import ModelSpec
from estimator.pipeline.judged import Judged, judged
from estimator.pipeline.verdict import offered
from estimator.planner.answers import Limit, TriedValue
from estimator.planner.cases import Lengths, usual_job
from estimator.planner.edge import Edge, Search, Seen, outermost
from estimator.planner.numbers import POSITIONS, number
from estimator.serving.engines import served_by
from estimator.specs.resolve import resolve

TRIES = 8
"""Values that are estimated one by one where neighbours jump."""
MOST_TRIES = 4096
BOUNDS = ("max", "min")


def limit(
    job: Job | Mapping[str, Any] | str | Path,
    field: str,
    bound: Literal["max", "min"],
    *,
    on: str | None = None,
    way: str | None = None,
    context: int | None = None,
    sequence: int | None = None,
    tries: int = TRIES,
    allow_files: bool = True,
) -> Limit:
    """The largest ("max") or the smallest ("min") value of a whole number in a job with which it fits, in training or serving.

    `job`: as `estimate` takes it, or the path of a framework's file. `field`: a dotted name, such as training.sequence_length.
    `on`: hardware such as 2xA100-80GB, in place of the job's own. `way`: `job` is a model, used in this way (serve, qlora, …) on
    `on`, spread over it as the headline spreads it; with `context` tokens of each sequence that is served, or
    `sequence` of each that is trained on. `tries`: so many
    values are estimated one by one where what is needed jumps from one to the next. Raises `InvalidJob` for a field that is no
    number, and what `estimate` raises of a job that is refused with every value that was tried.
    """
    if bound not in BOUNDS:
        raise InvalidValue(f"{bound!r} is neither max nor min", "bound")
    if not 1 <= tries <= MOST_TRIES:
        raise InvalidValue(f"write a number from 1 to {MOST_TRIES}, not {tries}", "tries")
    given = job_of(job, on) if way is None else _used(job, on, way, Lengths(context=context, sequence=sequence), allow_files)
    spec = resolve(given.model, allow_files).spec
    own, values = number(given, field, spec)
    values = values if bound == "max" else values[::-1]
    search = _Values(given, field, allow_files)
    start = search.start(values, own)
    edge = Edge(None)
    if search.tried(start, False).fits is not None:
        if isinstance(values, range):
            edge = Search(values, search.least, search.whole, tries).edge(start)
        else:
            edge = outermost(values, search.least, search.whole)
    return _answer(search, bound, edge, start, spec)


def _used(model: Any, on: str | None, way: str, lengths: Lengths, allow_files: bool) -> Job:
    """A usual way of using a model on some hardware, as a job."""
    if on is None:
        raise Contradiction("is of a model on some hardware: say that, too", "way")
    return job_of(usual_job(model, on, way, lengths, allow_files), None)


@dataclass(slots=True)
class _Values:
    """What estimates say of a job with a number changed, each asked once."""

    given: Job
    name: str
    allow_files: bool
    known: dict[tuple[int, bool], TriedValue] = field(default_factory=dict)
    found: dict[int, Judged] = field(default_factory=dict)
    refused: dict[int, WillItFitError] = field(default_factory=dict)

    def tried(self, value: int, reserves: bool = True) -> TriedValue:
        """A value; `reserves` False: without what the caching allocator holds beyond the tensors, which is no more."""
        if (value, reserves) not in self.known:
            self.known[value, reserves] = self._tried(value, reserves)
        return self.known[value, reserves]

    def _tried(self, value: int, reserves: bool) -> TriedValue:
        try:
            if value in self.refused:
                raise self.refused[value]
            found = judged(self._job(value), self.allow_files, reserves)
        except (InvalidJob, NotModelled) as error:
            self.refused[value] = error
            return TriedValue(value=value, fits=False, verdict="refused", total_bytes=None, peak_bytes=None, reason=str(error))
        self.found[value] = found
        memory, verdict = found.memory, found.verdict
        return TriedValue(
            value=value,
            fits=verdict.fits,
            verdict=verdict.verdict,
            total_bytes=memory.total_bytes,
            peak_bytes=memory.peak_bytes,
            reason=verdict.reason,
        )

    def _job(self, value: int) -> dict[str, Any]:
        asked: dict[str, Any] = self.given.model_dump(exclude_unset=True)
        part, (*path, last) = asked, self.name.split(".")
        for step in path:
            part = part.setdefault(step, {})
        part[last] = value
        if self.together:
            asked["parallelism"] = {**asked.get("parallelism", {}), "tensor": value}
        return asked

    @property
    def together(self) -> bool:
        """Whether a server's tensor-parallel degree goes with its GPUs: the job does not say how it is spread over them."""
        engine, spread = served_by(self.given), self.given.parallelism.model_fields_set
        if engine is None or engine.reads_gguf or engine.allocates:
            return False
        return self.name == "hardware.gpus" and not {"tensor", "data"} & spread

    def start(self, values: range | tuple[int, ...], own: int) -> int:
        """A value that is not refused: the job's own, or the next power of two; raises what is wrong with its own if all are."""
        for value in (
            own,
            *sorted((1 << power for power in range(40) if (1 << power) in values), key=lambda one: abs(one - own)),
        ):
            if self.tried(value, False).verdict != "refused":
                return value
        raise self.refused[own]

    def least(self, value: int) -> Seen:
        """A bound: what does not fit without the allocator's blocks does not with them."""
        return self._seen(self.tried(value, False), value)

    def whole(self, value: int) -> Seen:
        """What `estimate` says."""
        return self._seen(self.tried(value), value)

    def _seen(self, tried: TriedValue, value: int) -> Seen:
        if tried.total_bytes is None:
            return Seen(False, True)
        found = self.found[value]
        room = offered(found.memory.capacity_bytes, found.job)
        return Seen(bool(tried.fits), False, None if room is None else room - tried.total_bytes)


def _answer(search: _Values, bound: Any, edge: Edge, start: int, spec: ModelSpec) -> Limit:
    name = search.name
    at = search.tried(start if edge.value is None else edge.value)
    after = None if edge.beyond is None else search.tried(edge.beyond)
    if edge.value is None and at.fits is False:
        at = min((one for one in search.known.values() if one.total_bytes is not None), key=lambda one: one.total_bytes or 0)
        at = search.tried(at.value)
    by: Literal["memory", "host", "refused", "range"] | None = None
    most = "most" if bound == "max" else "least"
    if at.fits is None:
        reason = at.reason
    elif edge.value is None:
        reason = f"it fits with no {name} that was tried; least is needed with {at.value}: {at.reason}"
    elif after is None:
        by, reason = "range", f"it fits with {edge.value}, the {most} that {name} can be: {at.reason}"
        if name in POSITIONS and spec.learned_positions:
            reason = f"it fits with all {edge.value} positions, which are learned, so that there are no more: {at.reason}"
    elif after.verdict == "refused":
        by, reason = "refused", f"{after.value} is refused: {after.reason}"
    else:
        by = "host" if search.found[after.value].verdict.host else "memory"
        reason = f"with {after.value} it does not fit: {after.reason}"
    return Limit(
        field=name,
        bound=bound,
        value=edge.value,
        fits=None if at.fits is None else edge.value is not None,
        limited_by=by,
        reason=reason,
        at=at,
        next=after,
        untried=edge.untried,
        estimates=len(search.found),
        job=None if edge.value is None else search.found[edge.value].job.model_dump(mode="json"),
        assumptions=list(_remarks(search, edge, spec)),
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _remarks(search: _Values, edge: Edge, spec: ModelSpec) -> Iterator[str]:
    longest = spec.longest_sequence
    if search.name == "serving.concurrency" and edge.value is not None:
        yield from _sequences(search.found[edge.value], edge.value)
    if search.together:
        yield "parallelism.tensor goes with hardware.gpus, as the job does not say it: each layer is split over all GPUs"
    if search.name in POSITIONS and longest and not spec.learned_positions and (edge.value or 0) > longest:
        yield f"the model was made for {longest} positions: only memory is counted here, and rotary ones can be stretched to more"
    if edge.untried:
        yield (
            f"{edge.untried} values, up to {edge.last}, were not estimated: their tensors fit, and whether what the caching "
            "allocator holds does changes from one to the next; more tries estimate them from that end on, and with "
            "training.expandable_segments there are hardly such jumps"
        )


def _sequences(found: Judged, number: int) -> Iterator[str]:
    """What a number of sequences is of: how long each is, how many run at once, how many copies of the model have them."""
    job, logged = found.job, found.memory.engine
    yield f"each of them a sequence of {job.serving.context} tokens, prompt and answer together, all of them in the cache at once"
    most = job.serving.max_num_seqs or (logged and logged.running_requests)
    if most and number > most:
        yield f"the engine runs {most} of them at a time unless it is told otherwise, and others wait"
    copies, gpus = job.parallelism.data or 1, job.hardware.gpus
    if copies > 1:
        shared = f"; with parallelism.tensor {gpus} one model has the memory of all {gpus} GPUs" if gpus > 1 else ""
        yield f"so many for each of {copies} copies of the model, {copies * number} together{shared}"
