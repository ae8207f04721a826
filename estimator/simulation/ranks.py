"""The ranks of a job that differ in what they hold, and what they exchange. Megatron-Core is loaded for pipelines alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

from estimator.contract.answer import Rank, Traffic
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.parallel.pipeline import check_pipeline, pipeline_of
from estimator.parallel.schedules import in_flight
from estimator.parallel.topology import Topology
from estimator.simulation.simulation import Simulation
from estimator.tape.kernels import exchanges
from estimator.tape.tape import Tape


def ranks(job: Job, spec: ModelSpec, place: Topology, every: bool = False) -> list[Topology]:
    """The ranks of a pipeline one of which needs most, or `every` one."""
    if place.pipeline == 1:
        return [place]
    if job.task == "serve":
        return [replace(place, stage=i) for i in range(place.pipeline)]
    check_pipeline(job)
    from estimator.megatron.config import config
    from estimator.megatron.plan import candidates

    chosen = range(place.pipeline) if every else candidates(config(spec), pipeline_of(job).shortened(), job.parallelism)
    return [replace(place, stage=i) for i in chosen]


def alike(job: Job, spec: ModelSpec, place: Topology) -> list[Topology]:
    """For every rank of a pipeline the first that computes and exchanges the same."""
    if place.pipeline == 1:
        return [place]
    check_pipeline(job)
    from estimator.megatron.config import config
    from estimator.megatron.plan import kinds

    found = kinds(config(spec), pipeline_of(job), job.parallelism)
    return [replace(place, stage=found.index(kind)) for kind in found]


def described(job: Job, spec: ModelSpec, place: Topology, simulated: Simulation) -> Rank:
    """What a rank of a pipeline holds."""
    from estimator.megatron.config import config
    from estimator.megatron.plan import stages

    pipeline, phases = pipeline_of(job).shortened(), simulated.phases
    layers, held = stages(config(spec), pipeline, job.parallelism), pipeline.held(place.stage)
    chunks = [(layers[i][0], layers[i][-1]) if layers[i] else None for i in held]
    return Rank(
        stage=place.stage,
        gpus=place.gpus // place.pipeline,
        layers=chunks[0],
        chunks=chunks,
        embedding=0 in held,
        output=pipeline.stages - 1 in held,
        micro_batches=in_flight(pipeline.actions(place.stage)),
        peak_bytes=phases.peak.peak_bytes,
        peak_phase=phases.peak.name,
        resident_bytes=phases.phases[1].start_bytes,
    )


def traffic(tape: Tape, micro_steps: int) -> list[Traffic]:
    """What is exchanged in a step, by operation, group and phase: in forward and backward once per micro-batch.

    Of several occurrences of a phase on the tape the first stands for one micro-batch, and the later ones for the rest; in a
    pipeline each for as many as it is counted for.
    """
    passes: defaultdict[str, list[int | None]] = defaultdict(list)
    for phase in tape.phases:
        passes[phase.name].append(phase.passes)
    counts: defaultdict[tuple[str, str, int, str], Fraction] = defaultdict(Fraction)
    sizes: defaultdict[tuple[str, str, int, str], Fraction] = defaultdict(Fraction)
    for one, count in exchanges(tape):
        kind = one.operation, one.group, one.ranks, one.phase
        times = Fraction(count)
        if one.phase in ("forward", "backward"):
            times *= _stands_for(one.later, passes[one.phase], micro_steps)
        counts[kind] += times
        sizes[kind] += times * one.nbytes
    return [
        Traffic(operation=operation, group=group, ranks=members, phase=phase, count=int(count), bytes=int(sizes[kind]))
        for kind, count in counts.items()
        for operation, group, members, phase in [kind]
    ]


def _stands_for(later: bool, passes: list[int | None], micro_steps: int) -> Fraction:
    """Micro-batches for which one of a phase's occurrences stands, of which each is counted for so many passes."""
    if len(passes) == 1 or any(count != 1 for count in passes):
        return Fraction(micro_steps, max(1, sum(count or 0 for count in passes)))
    return Fraction(micro_steps - 1, len(passes) - 1) if later else Fraction(1)
