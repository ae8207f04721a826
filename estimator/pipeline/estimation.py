"""From a job to its answer: spec and hardware, the tape, its replay, then memory, time and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from estimator.contract.answer import (
    DEFAULT,
    Answer,
    Course,
    EngineMemory,
    HostMemory,
    KvCache,
    Memory,
    Parameters,
    Rank,
    ServingTime,
    Time,
    Versions,
)
from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import Job, read_job
from estimator.contract.units import MIB
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.families import parameters
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.hardware.capability import gpu, links
from estimator.hardware.capacity import Capacity, capacity
from estimator.host.memory import check_host, disk_bytes, host_memory
from estimator.parallel.communicators import communicators
from estimator.parallel.topology import Topology, topology
from estimator.parallel.uneven import uneven
from estimator.pipeline.advice import Trial, advice, partly
from estimator.pipeline.assumptions import assumptions, not_modelled, warnings, what_stays
from estimator.pipeline.checkpoint_budget import best_segments, recomputation, solution_given, solved
from estimator.pipeline.colocated_engine import with_engine
from estimator.pipeline.defaults import Reasons, defaults_used, with_defaults
from estimator.pipeline.refusals import check_lengths, refuse_unmodelled
from estimator.pipeline.step_time import duration, served
from estimator.pipeline.verdict import Verdict, judge, judge_host, offered
from estimator.pricing.cost import Priced, priced, unpriced
from estimator.pricing.energy import energy
from estimator.pricing.tokens import token_cost
from estimator.runtime.overheads import Overhead, facts, overhead, workspace
from estimator.runtime.reserved import Reserved
from estimator.serving.engines import engine_of, served_by
from estimator.serving.llamacpp.placement import Stored, of_file
from estimator.simulation.attribution import Attribution
from estimator.simulation.ranks import described, ranks, traffic
from estimator.simulation.simulation import Simulation, simulate
from estimator.specs.resolve import OF_THE_JOB, Model, resolve
from estimator.specs.teacher import with_teacher
from estimator.tape.kernels import flops
from estimator.tape.replay import Replay
from estimator.timing.run_length import Done, Hours, assumed, course
from estimator.training import partial


def estimate(
    job: Job | Mapping[str, Any] | str | Path, allow_files: bool = True, every_rank: bool = False, today: date | None = None
) -> Answer:
    """The answer to a job: a `Job`, a mapping, or the path of a YAML file.

    `allow_files` False refuses models named by a path, as a service must. `every_rank`: all stages of a pipeline are described,
    not only those one of which needs most. `today`: the day by which a price is old; without it, this day. Raises `InvalidJob`
    for what cannot be read or does not fit together, `NotModelled` for what this version has no model of, and `UnknownName`.
    """
    return _answer(_run(job, allow_files, every_rank), today or date.today(), allow_files)


def fits(job: Job | Mapping[str, Any] | str | Path, allow_files: bool = True, roomy: float = 0.0) -> bool | None:
    """What `estimate` says of a job in `fits`, sooner where even the peak is too much, or leaves a `roomy` share of the card and
    the host is not asked about."""
    run = _run(job, allow_files)
    limit = offered(run.card.memory_bytes, run.job)
    if _overflows(run):
        return False
    if (
        roomy
        and run.job.host.memory is None
        and limit is not None
        and run.simulation.phases.peak.peak_bytes + run.beside.total_bytes < (1 - roomy) * limit
    ):
        return True
    return _judged(run).verdict.fits


def judged(job: Job | Mapping[str, Any], allow_files: bool = True, reserves: bool = True) -> Judged:
    """What `estimate` says of a job's memory and verdict, without its time.

    `reserves` False: sooner, without what the caching allocator reserves beyond the tensors.
    """
    return _judged(_run(job, allow_files), reserves)


def step_time(job: Job, allow_files: bool = True) -> tuple[Time | None, Hours | None] | None:
    """The time of a step, and of the whole run, without the verdict; None if even the peak is more than the card offers."""
    run = _run(job, allow_files)
    if _overflows(run):
        return None
    time = duration(run.job, run.model.spec, run.place, run.card, run.simulation)
    return time, _hours(run.job, _course(run, time))


def _overflows(run: _Run) -> bool:
    limit = offered(run.card.memory_bytes, run.job)
    return limit is not None and run.simulation.phases.peak.peak_bytes + run.beside.total_bytes > limit


@dataclass(frozen=True, slots=True)
class _Run:
    """A job as it was given and with its defaults, on its model and its hardware, played."""

    given: Job
    job: Job
    model: Model
    place: Topology
    card: Capacity
    simulation: Simulation
    beside: Overhead
    chosen: list[str]
    """What is said of a choice that was made."""
    ranks: list[Rank]
    """The stages of a pipeline that were compared."""
    tensors: tuple[Stored, ...] | None
    """Those of a GGUF file that llama.cpp serves."""
    reasons: Reasons
    """Why defaults have the values that rules gave them."""


def _run(job: Job | Mapping[str, Any] | str | Path, allow_files: bool, every_rank: bool = False) -> _Run:
    given = read_job(job)
    model = resolve(given.model, allow_files)
    job, reasons = with_defaults(with_teacher(given, allow_files), model.spec)
    refuse_unmodelled(job, model.spec)
    check_host(job)
    check_lengths(job, model)
    place = topology(job, model.spec)
    card = capacity(job.hardware)
    job, chosen = solved(job, model.spec, place, gpu(job, card))
    given = solution_given(given, job) if chosen else given
    tensors = _of_file(given, model)
    simulations = [
        (each, rank, simulate(each, model.spec, rank, gpu(each, card), tensors))
        for each in partial.variants(job, model.spec)
        for rank in ranks(each, model.spec, place, every_rank)
    ]
    worst, place, simulated = max(simulations, key=lambda one: one[2].phases.peak.peak_bytes)
    groups = communicators(simulated.build.tape, worst, model.spec, place)
    engine = served_by(job)
    if engine is not None and engine.beside is not None:
        beside = engine.beside(worst, model.spec, place, gpu(worst, card))
    else:
        beside = overhead(card.compute_capability, groups, links(card, job.hardware.gpus), job.task == "train")
    beside = with_engine(beside, worst, model.spec, card, simulated.phases)
    each_rank = [described(each, model.spec, rank, one) for each, rank, one in simulations if each is worst and rank.pipeline > 1]
    return _Run(given, worst, model, place, card, simulated, beside, chosen, each_rank, tensors, reasons)


class Judged(NamedTuple):
    """What a job with its defaults takes, and whether it fits."""

    job: Job
    memory: Memory
    host: HostMemory | None
    verdict: Verdict
    uneven: str
    """Why more GPUs take no less, where they do not share parameters evenly."""


def _judged(run: _Run, reserves: bool = True) -> Judged:
    job, model, place, card = run.job, run.model, run.place, run.card
    simulated, why = run.simulation.phases, run.simulation.why
    taken = _reserved(job, run.simulation, card) if reserves else None
    logged, cache = _engine(run)
    memory = _memory(simulated, why, run.beside, taken, card, cache, logged)
    host = None if _several(job) else host_memory(job, model.spec, place, run.simulation)
    if host is not None:
        memory = memory.model_copy(update={"host_bytes": host.phases})
    engine = served_by(job)
    if engine is not None and engine.on_host is not None:
        memory = memory.model_copy(update={"host_bytes": engine.on_host(job, model.spec, run.tensors)})
    if engine is not None and engine.devices is not None:
        memory = memory.model_copy(update={"devices": engine.devices(job, model.spec, run.tensors)})
    shared = uneven(run.simulation.build.parameters, place, job.parallelism.replicas or 1) if job.task == "train" else ""
    return Judged(job, memory, host, judge_host(judge(job, memory), host), shared)


def _answer(run: _Run, today: date, allow_files: bool) -> Answer:
    job, model, place, card = run.job, run.model, run.place, run.card
    build = run.simulation.build
    found = _judged(run)
    memory, host, verdict = found.memory, found.host, found.verdict
    serving = _served(job, model.spec, place, card, today) if job.task == "serve" and not engine_of(job).reads_gguf else None
    time = serving.decode if serving else duration(job, model.spec, place, card, run.simulation)
    whole = _course(run, time)
    hours = _hours(job, whole)
    cost = _cost(job, hours, card, today)
    return Answer(
        fits=verdict.fits,
        verdict=verdict.verdict,
        reason=verdict.reason,
        memory=memory,
        host=host,
        parameters=_parameters(build, model, place, job),
        time=time,
        run=whole,
        serving=serving,
        communication=traffic(build.tape, job.training.gradient_accumulation_steps),
        ranks=run.ranks,
        recomputation=recomputation(job, model.spec, place, gpu(job, card), run.simulation),
        cost=cost.cost,
        energy=energy(job.hardware, card.accelerator, place.gpus, hours) if hours else None,
        job=job.model_dump(mode="json"),
        assumptions=[
            *(said if run.tensors is None else said.removesuffix(OF_THE_JOB) for said in model.assumptions),
            *card.assumptions,
            *run.chosen,
            *best_segments(job, model.spec, place, gpu(job, card)),
            *assumptions(job, place, card),
            *(assumed(job) if whole is not None and whole.hours is not None else ()),
            *cost.assumptions,
            *(DEFAULT + used for used in defaults_used(run.given, job, run.reasons)),
        ],
        warnings=[
            *warnings(job, model.spec, place, card, build.tape),
            *filter(None, [found.uneven]),
            *what_stays(job, memory),
            *cost.warnings,
        ],
        suggestions=[
            *verdict.suggestions,
            *(_advice(run, memory, allow_files) if verdict.fits is False and not verdict.host else ()),
        ],
        not_modelled=not_modelled(job, time),
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _advice(run: _Run, memory: Memory, allow_files: bool) -> list[str]:
    given = run.given.model_dump(exclude_unset=True)

    def attempt(change: dict[str, dict[str, Any]]) -> Trial | None:
        asked = {**given, **{part: {**given.get(part, {}), **settings} for part, settings in change.items()}}
        try:
            found = _judged(_run(asked, allow_files))
        except (InvalidJob, NotModelled):
            return None
        return Trial(found.memory.total_bytes, found.verdict.fits)

    fitting = engine_of(run.job).fitting(run.job.serving, run.model.spec) if run.job.task == "serve" else ()
    return [*partly(fitting, attempt), *advice(run.job, memory, attempt)]


def _several(job: Job) -> bool:
    """Whether several models are trained or run: what a host holds and saves of them is not modelled."""
    return job.training.objective is not None and job.training.objective.several


def _of_file(given: Job, model: Model) -> tuple[Stored, ...] | None:
    """The tensors of the GGUF file that names the model, where llama.cpp serves it as it is."""
    file, chosen = model.checkpoint, "weights" in given.serving.model_fields_set
    engine = served_by(given)
    if engine is None or not engine.reads_gguf or chosen or file is None or file.format != "gguf":
        return None
    return of_file(file)


def _reserved(job: Job, simulated: Simulation, card: Capacity) -> Reserved | None:
    """What the caching allocator takes; None for engines that take their share of the card whatever they need, or all at once."""
    if job.task == "serve" and not engine_of(job).allocates:
        return None
    kept = round(workspace(card.compute_capability).value * MIB)
    return simulated.reserved(kept, job.task == "train" and job.training.expandable_segments)


def _memory(
    simulated: Replay,
    why: Attribution,
    beside: Overhead,
    taken: Reserved | None,
    card: Capacity,
    cache: KvCache | None,
    engine: EngineMemory | None,
) -> Memory:
    peak, parts = simulated.peak, dict(beside.parts)
    last = {phase.name: phase for phase in simulated.phases}
    steps = [phase for phase in simulated.phases if phase.name != "load"]
    forward = last.get("forward") or last["prefill"]
    workspaces = parts.get("cublas_workspaces", 0)
    least = peak.peak_bytes + workspaces
    most = held = shown = least
    if taken is not None:
        most, held = max(least, taken.reserved_bytes), max(least, taken.held_bytes)
        outside = beside.total_bytes - workspaces
        crowded = card.memory_bytes is not None and most + outside > card.memory_bytes
        shown = held if crowded else most  # a full card makes the allocator give back what is wholly free
        parts["cached_blocks"] = shown - least
    spread = 0 if engine else round(peak.peak_bytes * facts()["fragmentation"].high)
    return Memory(
        capacity_bytes=card.memory_bytes,
        peak_bytes=peak.peak_bytes,
        peak_phase=peak.name,
        reserved_bytes=None if taken is None else shown,
        held_bytes=None if taken is None else held,
        total_bytes=peak.peak_bytes + sum(parts.values()),
        range_bytes=(peak.peak_bytes + beside.low_bytes, most - workspaces + beside.high_bytes + spread),
        resident_bytes=steps[0].start_bytes,
        forward_end_bytes=forward.end_bytes,
        phases={name: max(p.peak_bytes for p in steps if p.name == name) for name in last if name != "load"},
        phase_peaks=why.phase_peaks,
        at_peak=why.at_peak,
        peak=why.peak,
        overhead=parts,
        kv_cache=cache,
        engine=engine,
    )


def _engine(run: _Run) -> tuple[EngineMemory | None, KvCache | None]:
    """What an engine says of its memory when it starts, and its cache."""
    job, spec, place, card = run.job, run.model.spec, run.place, run.card
    if job.task != "serve":
        return None, None
    return engine_of(job).memory(job, spec, place, card, gpu(job, card))


def _parameters(build: Builder, model: Model, place: Topology, job: Job) -> Parameters:
    """Of the whole model, adapters included, layers that predict further tokens not; a tensor-parallel rank holds a part."""
    here = place.gpus == place.data and not job.training.mtp_num_layers
    whole = build.parameters if here else parameters(model.spec)
    return Parameters(
        total=sum(p.total for p in whole),
        trainable=sum(p.total for p in whole if p.trainable),
        active=sum(p.active * p.times for p in whole),
    )


def _hours(job: Job, run: Course | None) -> Hours | None:
    """How long the whole run takes; None if it is not said how much it processes, or not known how fast."""
    if job.task == "serve":
        return None if job.serving.hours is None else Hours(*[job.serving.hours] * 3)
    return None if run is None or run.hours is None or run.range_hours is None else Hours(run.hours, *run.range_hours)


def _course(run: _Run, time: Time | None) -> Course | None:
    job, place, tape = run.job, run.place, run.simulation.build.tape
    if job.task == "serve":
        return None

    def done() -> Done:
        forward, backward = (flops(tape, phase).total for phase in ("forward", "backward"))
        return Done(forward / ((forward + backward) or 1), _saved_bytes(run))

    return course(job, place.data, place.gpus, time, done)


def _saved_bytes(run: _Run) -> int:
    """What one node writes of a checkpoint: its part, or all of it, where one rank gathers it."""
    job = run.job
    if _several(job):
        return 0
    whole = sum(size for name, size in disk_bytes(job, run.model.spec, run.simulation).items() if name != "nvme")
    return whole // (job.hardware.nodes if job.host.save == "sharded" else 1)


def _served(job: Job, spec: ModelSpec, place: Topology, card: Capacity, today: date) -> ServingTime | None:
    """How fast a job serves, and what its tokens cost."""
    found = served(job, spec, place, card)
    if found is None:
        return None
    return found.model_copy(update={"cost": token_cost(job.hardware, card.accelerator, found, today)})


def _cost(job: Job, hours: Hours | None, card: Capacity, today: date) -> Priced:
    if hours is not None:
        return priced(job.hardware, card.accelerator, hours, today)
    if job.task == "serve" or (job.training.tokens is None and job.training.dataset is None):
        return Priced(None)
    return Priced(unpriced("without the card's name neither its speed nor its price is known"))
