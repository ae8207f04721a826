"""What a played job takes of the GPU and of the host, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from estimator.contract.answer import (
    EngineMemory,
    HostMemory,
    KvCache,
    Memory,
)
from estimator.contract.job import Job
from estimator.contract.units import MIB
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import Capacity
from estimator.host.memory import host_memory
from estimator.parallel.uneven import uneven
from estimator.pipeline.run import Run, played
from estimator.pipeline.verdict import Verdict, judge, judge_host, judge_ram, offered
from estimator.runtime.allocation import OutOfMemory
from estimator.runtime.overheads import Overhead, facts, workspace
from estimator.runtime.reserved import Reserved
from estimator.serving.engines import engine_of, served_by
from estimator.simulation.attribution import Attribution
from estimator.tape.replay import Replay


class Judged(NamedTuple):
    """What a job with its defaults takes, and whether it fits."""

    job: Job
    memory: Memory
    host: HostMemory | None
    verdict: Verdict
    uneven: str
    """Why more GPUs take no less, where they do not share parameters evenly."""


def fits(job: Job | Mapping[str, Any] | str | Path, allow_files: bool = True, roomy: float = 0.0) -> bool | None:
    """What `estimate` says of a job in `fits`, sooner: not how much the caching allocator takes is asked, only whether it is too
    much, and not even that where a `roomy` share of the card is left."""
    run = played(job, allow_files)
    limit = offered(run.card.memory_bytes, run.job)
    if overflows(run):
        return False
    if limit is not None and run.job.host.memory is None:
        if roomy and run.simulation.phases.peak.peak_bytes + run.beside.total_bytes < (1 - roomy) * limit:
            return True
        if run.job.task == "train":
            return run.simulation.runs_in(limit - _outside(run.beside), *_setting(run.job, run.card))
    return judge_run(run).verdict.fits


def judged(job: Job | Mapping[str, Any], allow_files: bool = True, reserves: bool = True) -> Judged:
    """What `estimate` says of a job's memory and verdict, without its time.

    `reserves` False: sooner, without what the caching allocator reserves beyond the tensors.
    """
    return judge_run(played(job, allow_files), reserves)


def overflows(run: Run) -> bool:
    """Whether even the peak is more than the card offers."""
    limit = offered(run.card.memory_bytes, run.job)
    return limit is not None and run.simulation.phases.peak.peak_bytes + run.beside.total_bytes > limit


def judge_run(run: Run, reserves: bool = True) -> Judged:
    """Memory and verdict. `reserves` False: without what the caching allocator reserves beyond the tensors."""
    job, model, place, card = run.job, run.model, run.place, run.card
    simulated, why = run.simulation.phases, run.simulation.why
    taken = _reserved(run) if reserves else None
    logged, cache = _engine(run)
    memory = _memory(simulated, why, run.beside, taken, card, cache, logged)
    host = None if several_models(job) else host_memory(job, model.spec, place, run.simulation)
    if host is not None:
        memory = memory.model_copy(update={"host_bytes": host.phases})
    engine = served_by(job)
    if engine is not None and engine.on_host is not None:
        memory = memory.model_copy(update={"host_bytes": engine.on_host(job, model.spec, run.tensors)})
    if engine is not None and engine.devices is not None:
        memory = memory.model_copy(update={"devices": engine.devices(job, model.spec, run.tensors)})
    shared = uneven(run.simulation.build.parameters, place, job.parallelism.replicas or 1) if job.task == "train" else ""
    return Judged(job, memory, host, judge_ram(judge_host(judge(job, memory), host), job, memory), shared)


def several_models(job: Job) -> bool:
    """Whether several models are trained or run: what a host holds and saves of them is not modelled."""
    return job.training.objective is not None and job.training.objective.several


def _allocates(job: Job) -> bool:
    """Whether the caching allocator serves what is asked for; engines take their share of the card whatever they need, or all
    at once."""
    return job.task == "train" or engine_of(job).allocates


def _setting(job: Job, card: Capacity) -> tuple[int, bool]:
    """What the allocator depends on besides what is asked of it: the bytes that cuBLAS keeps, whether segments grow."""
    return round(workspace(card.compute_capability).value * MIB), job.task == "train" and job.training.expandable_segments


def _outside(beside: Overhead) -> int:
    """Bytes of the process that the caching allocator has no part in."""
    return beside.total_bytes - beside.parts.get("cublas_workspaces", 0)


def _reserved(run: Run) -> Reserved | None:
    """What the caching allocator takes, where it does: of a card that is too small for all its cached blocks what it gets by
    with, or, where it does not, what it would need."""
    if not _allocates(run.job):
        return None
    asked = _setting(run.job, run.card)
    free = run.simulation.reserved(*asked)
    if run.card.memory_bytes is None or free.reserved_bytes <= (room := run.card.memory_bytes - _outside(run.beside)):
        return free
    needed = free.held_bytes
    if not overflows(run):
        try:
            return run.simulation.reserved(*asked, room)
        except OutOfMemory as error:
            needed = max(needed, error.needed_bytes)
    return Reserved(needed, needed)


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
    most = held = least
    if taken is not None:
        most, held = max(least, taken.reserved_bytes), max(least, taken.held_bytes)
        parts["cached_blocks"] = most - least
    spread = 0 if engine or card.ram else round(peak.peak_bytes * facts()["fragmentation"].high)
    return Memory(
        capacity_bytes=card.memory_bytes,
        peak_bytes=peak.peak_bytes,
        peak_phase=peak.name,
        reserved_bytes=None if taken is None else most,
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


def _engine(run: Run) -> tuple[EngineMemory | None, KvCache | None]:
    """What an engine says of its memory when it starts, and its cache."""
    job, spec, place, card = run.job, run.model.spec, run.place, run.card
    if job.task != "serve":
        return None, None
    return engine_of(job).memory(job, spec, place, card, gpu(job, card))
