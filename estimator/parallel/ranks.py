"""The ranks of a job that differ in what they hold, and what they exchange."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from estimator.answer import Rank, Traffic
from estimator.job import Job
from estimator.megatron.config import config
from estimator.megatron.plan import candidates, kinds, stages
from estimator.parallel.pipeline import check_pipeline, pipeline_of
from estimator.parallel.schedules import in_flight
from estimator.parallel.topology import Topology
from estimator.playing import Play
from estimator.specs.spec import ModelSpec
from estimator.tape.tape import Tape


def ranks(job: Job, spec: ModelSpec, place: Topology, every: bool = False) -> list[Topology]:
    """The ranks of a pipeline one of which needs most, or `every` one."""
    if place.pipeline == 1:
        return [place]
    check_pipeline(job)
    chosen = range(place.pipeline) if every else candidates(config(spec), pipeline_of(job).shortened(), job.parallelism)
    return [replace(place, stage=i) for i in chosen]


def alike(job: Job, spec: ModelSpec, place: Topology) -> list[Topology]:
    """For every rank of a pipeline the first that computes and exchanges the same."""
    if place.pipeline == 1:
        return [place]
    check_pipeline(job)
    found = kinds(config(spec), pipeline_of(job), job.parallelism)
    return [replace(place, stage=found.index(kind)) for kind in found]


def described(job: Job, spec: ModelSpec, place: Topology, played: Play) -> Rank:
    """What a rank of a pipeline holds."""
    pipeline, phases = pipeline_of(job).shortened(), played.phases
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
    """What is exchanged in a step, by operation, group and phase: in forward and backward once per micro-batch."""
    counts: Counter[tuple[str, str, int, str]] = Counter()
    sizes: Counter[tuple[str, str, int, str]] = Counter()
    for one in tape.traffic:
        kind = one.operation, one.group, one.ranks, one.phase
        times = one.slot.total if one.slot else 1
        counts[kind] += times
        sizes[kind] += times * one.nbytes
    found = []
    for kind, count in counts.items():
        operation, group, members, name = kind
        times, of = (micro_steps, tape.passes(name)) if name in ("forward", "backward") else (1, 1)
        found.append(
            Traffic(
                operation=operation,
                group=group,
                ranks=members,
                phase=name,
                count=count * times // of,
                bytes=sizes[kind] * times // of,
            )
        )
    return found
