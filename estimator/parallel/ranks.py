"""The ranks of a job that differ in what they hold, and what they exchange."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from estimator.answer import Rank, Traffic
from estimator.job import Job
from estimator.megatron.config import config
from estimator.megatron.plan import candidates, stages
from estimator.megatron.schedule import in_flight
from estimator.parallel.topology import Topology
from estimator.playing import Play
from estimator.specs.spec import ModelSpec
from estimator.tape.tape import Tape


def ranks(job: Job, spec: ModelSpec, place: Topology, every: bool = False) -> list[Topology]:
    """A rank of each pipeline stage that may need most, or of `every` one."""
    if place.pipeline == 1:
        return [place]
    chosen = range(place.pipeline) if every else candidates(config(spec), place, job.parallelism)
    return [replace(place, stage=i) for i in chosen]


def described(job: Job, spec: ModelSpec, place: Topology, played: Play) -> Rank:
    """What a rank of a stage holds."""
    layers = stages(config(spec), place.pipeline, job.parallelism)[place.stage]
    phases = played.phases
    return Rank(
        stage=place.stage,
        gpus=place.gpus // place.pipeline,
        layers=(layers[0], layers[-1]) if layers else None,
        embedding=place.stage == 0,
        output=place.stage == place.pipeline - 1,
        micro_batches=in_flight(place.stage, place.pipeline, job.training.gradient_accumulation_steps),
        peak_bytes=phases.peak.peak_bytes,
        peak_phase=phases.peak.name,
        resident_bytes=phases.phases[1].start_bytes,
    )


def traffic(tape: Tape, micro_steps: int) -> list[Traffic]:
    """What is exchanged in a step, by operation, group and phase: in forward and backward once per micro-batch."""
    occurrences = Counter(phase.name for phase in tape.phases)
    counts: Counter[tuple[str, str, int, str]] = Counter()
    sizes: Counter[tuple[str, str, int, str]] = Counter()
    for one in tape.traffic:
        kind = one.operation, one.group, one.ranks, one.phase
        times = one.slot.total if one.slot else 1
        counts[kind] += times
        sizes[kind] += times * one.nbytes
    found = []
    for kind, count in counts.items():
        operation, group, members, phase = kind
        times, of = (micro_steps, occurrences[phase]) if phase in ("forward", "backward") else (1, 1)
        found.append(
            Traffic(
                operation=operation,
                group=group,
                ranks=members,
                phase=phase,
                count=count * times // of,
                bytes=sizes[kind] * times // of,
            )
        )
    return found
