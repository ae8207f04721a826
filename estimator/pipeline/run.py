"""A job with its defaults, on its model and its hardware, played: what every part of an answer is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator.contract.answer import (
    Rank,
)
from estimator.contract.job import Job, read_job
from estimator.contract.units import parse_bytes
from estimator.families.spec import ModelSpec
from estimator.hardware.capability import gpu, links
from estimator.hardware.capacity import Capacity, capacity
from estimator.host.memory import check_host
from estimator.parallel.communicators import communicators
from estimator.parallel.topology import Topology, topology
from estimator.pipeline.checkpoint_budget import solution_given, solved
from estimator.pipeline.colocated_engine import with_engine
from estimator.pipeline.defaults import Reasons, with_defaults
from estimator.pipeline.refusals import check_lengths, refuse_unmodelled
from estimator.runtime.overheads import Overhead, beside_in_ram, overhead
from estimator.serving.engines import served_by
from estimator.serving.llamacpp.placement import WeightTensor, of_file
from estimator.simulation.ranks import described, ranks
from estimator.simulation.simulation import Simulation, simulate
from estimator.specs.resolve import Model, resolve
from estimator.specs.teacher import with_draft, with_teacher
from estimator.tape.tape import Tape
from estimator.training import partial


@dataclass(frozen=True, slots=True)
class Run:
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
    tensors: tuple[WeightTensor, ...] | None
    """Those of a GGUF file that llama.cpp serves."""
    reasons: Reasons
    """Why defaults have the values that rules gave them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job with its defaults, on its model and its hardware, refused if it is not modelled: ready to be simulated."""

    given: Job
    job: Job
    model: Model
    place: Topology
    card: Capacity
    chosen: list[str]
    """What is said of a choice that was made."""
    tensors: tuple[WeightTensor, ...] | None
    """Those of a GGUF file that llama.cpp serves."""
    reasons: Reasons

    def simulated(self, every_rank: bool = False) -> list[tuple[Job, Topology]]:
        """The variants of the job and the ranks of each of which the one that needs most is the answer."""
        variants, spec = partial.variants(self.job, self.model.spec), self.model.spec
        return [(each, rank) for each in variants for rank in ranks(each, spec, self.place, every_rank)]


def prepared(job: Job | Mapping[str, Any] | str | Path, allow_files: bool) -> Prepared:
    """Read, fill in, and refuse what is not modelled."""
    given = read_job(job)
    model = resolve(given.model, allow_files)
    job, reasons = with_defaults(
        with_draft(with_teacher(given, allow_files), allow_files), model.spec, model.stored, model.embeds
    )
    refuse_unmodelled(job, model.spec)
    check_host(job)
    check_lengths(job, model)
    place = topology(job, model.spec)
    card = capacity(job.hardware)
    job, chosen = solved(job, model.spec, place, gpu(job, card))
    given = solution_given(given, job) if chosen else given
    return Prepared(given, job, model, place, card, chosen, _of_file(given, model), reasons)


def played(job: Job | Mapping[str, Any] | str | Path, allow_files: bool, every_rank: bool = False) -> Run:
    """Read, fill in, refuse what is not modelled, and simulate: of a pipeline's stages the one that needs most."""
    ready = prepared(job, allow_files)
    model, card = ready.model, ready.card
    simulations = [
        (each, rank, simulate(each, model.spec, rank, gpu(each, card), ready.tensors))
        for each, rank in ready.simulated(every_rank)
    ]
    worst, place, simulated = max(simulations, key=lambda one: one[2].phases.peak.peak_bytes)
    beside = with_engine(
        overhead_of(simulated.build.tape, worst, model.spec, place, card), worst, model.spec, card, simulated.phases
    )
    each_rank = [
        described(each, model.spec, rank, one)
        for each, rank, one in simulations
        if each is worst and rank.pipeline > 1 and each.task == "train"
    ]
    return Run(ready.given, worst, model, place, card, simulated, beside, ready.chosen, each_rank, ready.tensors, ready.reasons)


def overhead_of(tape: Tape, job: Job, spec: ModelSpec, place: Topology, card: Capacity) -> Overhead:
    """What a process takes in addition to torch's allocations, of a run that is on a tape."""
    engine = served_by(job)
    if engine is not None and engine.beside is not None:
        return engine.beside(job, spec, place, gpu(job, card))
    if card.ram:
        return beside_in_ram()
    groups = communicators(tape, job, spec, place)
    context = parse_bytes(job.calibration.context) if job.calibration and job.calibration.context else None
    buffers = 0
    if job.parallelism.tp_comm_overlap:
        from estimator.megatron.userbuffers import userbuffer_bytes

        buffers = userbuffer_bytes(job, spec, place)
    return overhead(card.compute_capability, groups, links(card, job.hardware.gpus), job.task == "train", buffers, context)


def _of_file(given: Job, model: Model) -> tuple[WeightTensor, ...] | None:
    """The tensors of the GGUF file that names the model, where llama.cpp serves it as it is."""
    file, chosen = model.checkpoint, "weights" in given.serving.model_fields_set
    engine = served_by(given)
    if engine is None or not engine.reads_gguf or chosen or file is None or file.format != "gguf":
        return None
    return of_file(file)
