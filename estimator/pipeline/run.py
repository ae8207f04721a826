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
from estimator.hardware.capability import gpu, links
from estimator.hardware.capacity import Capacity, capacity
from estimator.host.memory import check_host
from estimator.parallel.communicators import communicators
from estimator.parallel.topology import Topology, topology
from estimator.pipeline.checkpoint_budget import solution_given, solved
from estimator.pipeline.colocated_engine import with_engine
from estimator.pipeline.defaults import Reasons, with_defaults
from estimator.pipeline.refusals import check_lengths, refuse_unmodelled
from estimator.runtime.overheads import Overhead, overhead
from estimator.serving.engines import served_by
from estimator.serving.llamacpp.placement import WeightTensor, of_file
from estimator.simulation.ranks import described, ranks
from estimator.simulation.simulation import Simulation, simulate
from estimator.specs.resolve import Model, resolve
from estimator.specs.teacher import with_teacher
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


def played(job: Job | Mapping[str, Any] | str | Path, allow_files: bool, every_rank: bool = False) -> Run:
    """Read, fill in, refuse what is not modelled, and simulate: of a pipeline's stages the one that needs most."""
    given = read_job(job)
    model = resolve(given.model, allow_files)
    job, reasons = with_defaults(with_teacher(given, allow_files), model.spec, model.stored)
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
    return Run(given, worst, model, place, card, simulated, beside, chosen, each_rank, tensors, reasons)


def _of_file(given: Job, model: Model) -> tuple[WeightTensor, ...] | None:
    """The tensors of the GGUF file that names the model, where llama.cpp serves it as it is."""
    file, chosen = model.checkpoint, "weights" in given.serving.model_fields_set
    engine = served_by(given)
    if engine is None or not engine.reads_gguf or chosen or file is None or file.format != "gguf":
        return None
    return of_file(file)
