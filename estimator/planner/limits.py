"""How far a job can go: the largest or smallest value of one of its numbers with which it fits, and what is in the way of more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from estimator.contract.answer import Versions
from estimator.contract.errors import (
    Contradiction,
    InvalidJob,
    InvalidValue,
    NotModelled,
    UnknownKey,
    WillItFitError,
    did_you_mean,
)
from estimator.contract.job import Job, read_job
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import read_file
from estimator.families.spec import ModelSpec
from estimator.hardware.parse import read_hardware
from estimator.pipeline.estimation import judged
from estimator.pipeline.judged import Judged
from estimator.pipeline.verdict import offered
from estimator.planner.answers import Limit, TriedValue
from estimator.planner.edge import Edge, Search, Seen, outermost
from estimator.serving.engines import served_by
from estimator.specs.resolve import resolve

TRIES = 8
"""Values that are estimated one by one where neighbours jump."""
MOST_TRIES = 4096
BOUNDS = ("max", "min")
POSITIONS = ("training.sequence_length", "serving.context")
DEGREES = tuple(
    f"parallelism.{name}" for name in ("data", "tensor", "pipeline", "context", "expert", "expert_tensor", "replicas")
)
"""Numbers of ranks."""
LAYERS = ("serving.gpu_layers", "serving.n_cpu_moe")
"""Numbers of llama.cpp's that count layers, and the output as one more."""


def limit(
    job: Job | Mapping[str, Any] | str | Path,
    field: str,
    bound: Literal["max", "min"],
    *,
    on: str | None = None,
    tries: int = TRIES,
    allow_files: bool = True,
) -> Limit:
    """The largest ("max") or the smallest ("min") value of a whole number in a job with which it fits, in training or serving.

    `job`: as `estimate` takes it, or the path of a framework's file. `field`: a dotted name, such as training.sequence_length.
    `on`: hardware such as 2xA100-80GB, in place of the job's own. `tries`: so many values are estimated one by one where what is
    needed jumps from one to the next. Raises `InvalidJob` for a field that is no number, and what `estimate` raises of a job that
    is refused with every value that was tried.
    """
    if bound not in BOUNDS:
        raise InvalidValue(f"{bound!r} is neither max nor min", "bound")
    if not 1 <= tries <= MOST_TRIES:
        raise InvalidValue(f"write a number from 1 to {MOST_TRIES}, not {tries}", "tries")
    given = _read(job, on)
    own, low, high = _number(given, field)
    spec = resolve(given.model, allow_files).spec
    values = _legal(given, field, low, _most(field, high, spec))
    values = values if bound == "max" else values[::-1]
    search = _Values(given, field, allow_files)
    start = search.start(values, own)
    edge = Edge(None)
    if search.tried(start, False).fits is not None:
        if isinstance(values, range):
            edge = Search(values, search.least, search.whole, tries).edge(start)
        else:
            edge = outermost(values, search.least, search.whole)
    return _answer(search, bound, edge, values, start, spec)


def _read(job: Job | Mapping[str, Any] | str | Path, on: str | None) -> Job:
    if isinstance(job, str | Path):
        found = read_file(job, on)
        if not found.job.get("model"):
            raise InvalidValue(f"a file of {found.framework} names no model: import it with --model first", "model")
        return read_job(found.job)
    given = read_job(job)
    return given if on is None else given.model_copy(update={"hardware": read_hardware(on).hardware})


def _number(job: Job, name: str) -> tuple[int, int, int]:
    """The job's own value of a field, and the least and the most that the contract takes."""
    *path, last = name.split(".")
    part: Any = job
    for step in path:
        part = _field(job, part, step, name)
        if not isinstance(part, BaseModel):
            whole = name.partition(f".{last}")[0]
            said = "does not say" if part is None else f"says {str(part)[:40]!r} for"
            raise Contradiction(f"the job {said} {whole}: write that with its fields to ask about one of them", name)
    own = _field(job, part, last, name)
    said = type(part).model_json_schema(mode="serialization")["properties"][last]
    kind = next((one for one in said.get("anyOf", [said]) if one.get("type") == "integer"), None)
    if kind is None:
        raise InvalidValue("is no whole number: ask about one, such as training.sequence_length or hardware.gpus", name)
    low, high = kind.get("minimum", kind.get("ge", 0)), kind.get("maximum", kind.get("le", 2**40))
    return min(max(low if own is None else own, low), high), low, high


def _field(job: Job, part: BaseModel, name: str, whole: str) -> Any:
    if name not in type(part).model_fields:
        known = list(_names(job))
        same = [one for one in known if one.endswith(f".{name}")] if name else []
        near = f" Did you mean {' or '.join(map(repr, same))}?" if same else did_you_mean(whole, known)
        raise UnknownKey(f"a job has no such field.{near}", whole)
    return getattr(part, name)


def _names(part: BaseModel, path: str = "") -> Iterator[str]:
    """The dotted names of all fields of a job's parts that are there."""
    for name in type(part).model_fields:
        inner = getattr(part, name)
        yield f"{path}{name}"
        if isinstance(inner, BaseModel):
            yield from _names(inner, f"{path}{name}.")


def _most(name: str, high: int, spec: ModelSpec) -> int:
    """The largest value that means something of a model."""
    if name in LAYERS:
        return spec.depth + (name == LAYERS[0])
    return spec.longest_sequence or high if name in POSITIONS and spec.learned_positions else high


def _legal(job: Job, name: str, low: int, high: int) -> range | tuple[int, ...]:
    """The values that are looked at: of a degree of parallelism those that divide the GPUs."""
    if name in DEGREES:
        gpus = job.hardware.gpus * job.hardware.nodes
        return tuple(degree for degree in range(1, gpus + 1) if gpus % degree == 0)
    return range(low, high + 1)


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
        splits = engine is not None and not engine.reads_gguf and not engine.allocates
        return splits and self.name == "hardware.gpus" and not {"tensor", "data"} & spread

    def start(self, values: range | tuple[int, ...], own: int) -> int:
        """A value that is not refused: the job's own, or the next power of two; raises what is wrong with its own if all are."""
        for value in (own, *sorted((2**power for power in range(40) if 2**power in values), key=lambda one: abs(one - own))):
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


def _answer(search: _Values, bound: Any, edge: Edge, values: Sequence[int], start: int, spec: ModelSpec) -> Limit:
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
    if search.together:
        yield "parallelism.tensor goes with hardware.gpus, as the job does not say it: each layer is split over all GPUs"
    if search.name in POSITIONS and longest and not spec.learned_positions and (edge.value or 0) > longest:
        yield f"the model was made for {longest} positions; more are a matter of memory alone here: rotary ones can be stretched"
    if edge.untried:
        yield (
            f"{edge.untried} values beyond, up to {edge.last}, were not estimated: their tensors fit, and whether what the "
            "caching allocator holds does changes from one to the next. With as many tries they are; "
            "training.expandable_segments takes such jumps away"
        )
