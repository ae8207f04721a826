"""A job run with some of its fields as symbols: a program, and the conditions under which it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import CheckpointForm, Job
from estimator.hardware.capability import gpu
from estimator.pipeline.run import Prepared, overhead_of, prepared
from estimator.simulation.trace import trace
from estimator.sweeps.bounds import Intervals
from estimator.sweeps.evaluation import Evaluation, fields_of
from estimator.sweeps.grid import TILE, tiles
from estimator.sweeps.polynomials import Terms
from estimator.sweeps.program import Moments, course, moments, monomial_values
from estimator.sweeps.sym import Sym
from estimator.sweeps.trace import Atom, Guard, Trace
from estimator.tape.lifetimes import undisturbed
from estimator.tape.replay import replay
from estimator.tape.tape import Tape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Point = Mapping[str, int]
"""Values of the fields that vary, by their paths in a job."""


class Unsuited(Exception):
    """A run that cannot be made with symbols, or that would not say what a run with numbers says."""


class Refused(Exception):
    """A job that is refused, as a value: its `error`."""

    def __init__(self, error: InvalidJob | NotModelled):
        self.error = error


@dataclass(frozen=True, slots=True)
class Part:
    """One of the runs of which the one that needs most is the answer. `overhead`: what its process takes beside the tensors."""

    moments: Moments
    overhead: Terms


@dataclass(slots=True)
class Program:
    """What a job takes wherever its `guards` hold: `parts`, or a refusal. It was compared with runs on numbers at the ends of
    what lies from `low` to `high`."""

    atoms: list[Atom]
    guards: list[Guard]
    parts: list[Part]
    refusal: InvalidJob | NotModelled | None
    low: dict[str, int] = field(default_factory=dict)
    high: dict[str, int] = field(default_factory=dict)
    wrong: bool = False
    """Whether such a run said something else."""

    @property
    def nbytes(self) -> int:
        """What it takes of the memory of this process, about."""
        return 400 * (len(self.atoms) + len(self.guards)) + sum(part.moments.nbytes for part in self.parts)

    def holds(self, fields: Mapping[str, Array]) -> Array:
        """At which points, of fields that broadcast against each other."""
        import numpy as np

        shape = np.broadcast_shapes(*[values.shape for values in fields.values()])
        evaluation, open_guards = Evaluation(self.atoms, fields), self.guards
        holding = np.ones(shape, bool)
        for tile in [(), *tiles(shape)] if holding.size > TILE else [()]:
            part = {name: _cut(values, tile) for name, values in fields.items()}
            if tile:
                evaluation = Evaluation(self.atoms, part)
            within = Intervals(
                self.atoms, *({name: float(end(values)) for name, values in part.items()} for end in (np.min, np.max))
            )
            undecided = []
            for guard in open_guards:
                said = within.decided(guard)
                if said is None and (tile or holding.size <= TILE or len(fields_of(self.atoms, guard.expression)) < 2):
                    with np.errstate(all="ignore"):
                        holding[tile] &= evaluation.holds(guard)
                elif said is None:
                    undecided.append(guard)
                elif not said:
                    holding[tile] = False
            if not tile:
                open_guards = undecided
        return holding

    def play(self, fields: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Peak, resident, and peak with overheads, in bytes, at each point of fields that broadcast against each other,
        [points]: of the run that needs most."""
        import numpy as np

        found = []
        for part in self.parts:
            peak, resident = part.moments.played(self.atoms, fields)
            beside = Evaluation(self.atoms, fields).polynomial(part.overhead)
            if beside.ndim:
                beside = np.broadcast_to(beside, np.broadcast_shapes(*[each.shape for each in fields.values()])).ravel()
            found.append((peak, resident, peak + beside))
        if len(found) == 1:
            return found[0]
        peaks = np.stack([each[0] for each in found])
        worst, points = peaks.argmax(axis=0), np.arange(peaks.shape[1])
        peak, resident, least = (np.stack(each)[worst, points] for each in zip(*found, strict=True))
        return peak, resident, least


def _cut(values: Array, tile: tuple[slice, ...]) -> Array:
    """The part of an array in a tile of the shape that it broadcasts to."""
    return values[tuple(slice(None) if size == 1 else part for part, size in zip(tile, values.shape, strict=False))]


def changed(job: Job, fields: Mapping[str, Any]) -> Job:
    """A job with other values in fields that it has."""
    for path, value in fields.items():
        *outer, name = path.split(".")
        for depth in range(len(outer), -1, -1):
            part = reduce(getattr, outer[:depth], job).model_copy(update={name: value})
            name, value = outer[depth - 1] if depth else "", part
        job = value
    return job


def program(job: Job, point: Point, allow_files: bool) -> Program:
    """The program of a job around a point. Raises `Unsuited` where none can be made."""
    if isinstance(how := job.training.activation_checkpointing, CheckpointForm) and how.budget is not None:
        raise Unsuited("a budget is solved with simulations that are remembered")
    run = Trace()
    asked = changed(job, {name: run.field(name, value) for name, value in point.items()})
    try:
        ready = prepared(asked, allow_files)
        if _engine_beside(ready.job):
            raise Unsuited("an engine's share depends on the peak")
        parts = []
        for tape, overhead in _traced(ready):
            expression: Terms = overhead.terms if isinstance(overhead, Sym) else {(): overhead}
            parts.append(Part(moments(tape, run), expression))
    except (InvalidJob, NotModelled) as error:
        return Program(run.atoms, list(run.guards.values()), [], error)
    except (Unsuited, RecursionError):
        raise
    except Exception as error:  # whatever code that wants a true integer raises
        raise Unsuited(f"{type(error).__name__}: {error}") from error
    return Program(run.atoms, list(run.guards.values()), parts, None)


def _engine_beside(job: Job) -> bool:
    objective = job.training.objective
    return job.task == "train" and objective is not None and getattr(objective.generation, "engine", None) == "vllm"


def _traced(ready: Prepared) -> list[tuple[Tape, Any]]:
    """The tape and the overhead of each run that may need most."""
    spec, found = ready.model.spec, []
    for each, rank in ready.simulated():
        build = undisturbed(partial(trace, each, spec, rank, gpu(each, ready.card), ready.tensors))
        beside = overhead_of(build.tape, each, spec, rank, ready.card)
        found.append((build.tape, sum(beside.parts.values())))
    return found


def by_itself(job: Job, allow_files: bool) -> tuple[list[Tape], tuple[int, int, int]]:
    """A job's tapes; its peak, resident, and peak with overheads in bytes. Raises `Refused`."""
    try:
        found = _traced(prepared(job, allow_files))
    except (InvalidJob, NotModelled) as error:
        raise Refused(error) from None
    runs = [(replay(tape), beside) for tape, beside in found]
    run, beside = max(runs, key=lambda one: one[0].peak.peak_bytes)
    resident = next(phase.start_bytes for phase in run.phases if phase.name != "load")
    return [tape for tape, _ in found], (run.peak.peak_bytes, resident, run.peak.peak_bytes + beside)


def agrees(found: Program, job: Job, point: Point, allow_files: bool) -> bool:
    """Whether a run on numbers says at a point what the program says: each event, each size, and the bytes."""
    import numpy as np

    fields = {name: np.asarray([value], np.int64) for name, value in point.items()}
    try:
        tapes, said = by_itself(changed(job, point), allow_files)
    except Refused as refused:
        return type(found.refusal) is type(refused.error)
    if found.refusal or len(tapes) != len(found.parts):
        return False
    for tape, part in zip(tapes, found.parts, strict=True):
        seen = part.moments
        sizes = seen.sizes @ monomial_values(found.atoms, seen.monomials, fields)
        if course(tape) != seen.course or not np.array_equal(sizes[seen.kinds, 0], np.asarray(tape.sizes, np.float64)):
            return False
    return said == tuple(int(each[0]) for each in found.play(fields))
