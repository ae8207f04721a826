"""The ranks of a job that differ in what they hold, and what they exchange."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction

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
    """What is exchanged in a step, by operation, group and phase: in forward and backward once per micro-batch.

    Of several occurrences of a phase on the tape the first stands for one micro-batch, and the later ones for the rest.
    """
    occurrences = Counter(phase.name for phase in tape.phases)
    counts: defaultdict[tuple[str, str, int, str], Fraction] = defaultdict(Fraction)
    sizes: defaultdict[tuple[str, str, int, str], Fraction] = defaultdict(Fraction)
    for one in tape.traffic:
        kind = one.operation, one.group, one.ranks, one.phase
        times = Fraction(one.slot.total if one.slot else 1)
        if one.phase in ("forward", "backward"):
            times *= _stands_for(one.later, occurrences[one.phase], micro_steps)
        counts[kind] += times
        sizes[kind] += times * one.nbytes
    return [
        Traffic(operation=operation, group=group, ranks=members, phase=phase, count=int(count), bytes=int(sizes[kind]))
        for kind, count in counts.items()
        for operation, group, members, phase in [kind]
    ]


def _stands_for(later: bool, occurrences: int, micro_steps: int) -> Fraction:
    """Micro-batches for which one of a phase's occurrences stands."""
    if occurrences == 1:
        return Fraction(micro_steps)
    return Fraction(micro_steps - 1, occurrences - 1) if later else Fraction(1)
