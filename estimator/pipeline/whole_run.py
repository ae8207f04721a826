"""How long a whole run takes, and what it costs."""

from __future__ import annotations

from datetime import date

from estimator.contract.answer import (
    Course,
    ServingTime,
    Time,
)
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.host.memory import disk_bytes
from estimator.parallel.topology import Topology
from estimator.pipeline.judged import several_models
from estimator.pipeline.run import Run
from estimator.pipeline.step_time import served
from estimator.pricing.cost import Priced, priced, unpriced
from estimator.pricing.tokens import token_cost
from estimator.serving.llamacpp.placement import WeightTensor
from estimator.tape.kernels import flops
from estimator.timing.run_length import Done, Hours, course


def course_of(run: Run, time: Time | None) -> Course | None:
    """How long a training run takes, by what it is to process; None of a server."""
    job, place, tape = run.job, run.place, run.simulation.build.tape
    if job.task == "serve":
        return None

    def done() -> Done:
        forward, backward = (flops(tape, phase).total for phase in ("forward", "backward"))
        return Done(forward / ((forward + backward) or 1), _saved_bytes(run))

    return course(job, place.data, place.gpus, time, done)


def hours_of(job: Job, run: Course | None) -> Hours | None:
    """How long the whole run takes; None if it is not said how much it processes, or not known how fast."""
    if job.task == "serve":
        return None if job.serving.hours is None else Hours(*[job.serving.hours] * 3)
    return None if run is None or run.hours is None or run.range_hours is None else Hours(run.hours, *run.range_hours)


def _saved_bytes(run: Run) -> int:
    """What one node writes of a checkpoint: its part, or all of it, where one rank gathers it."""
    job = run.job
    if several_models(job):
        return 0
    whole = sum(size for name, size in disk_bytes(job, run.model.spec, run.simulation).items() if name != "nvme")
    return whole // (job.hardware.nodes if job.host.save == "sharded" else 1)


def served_of(
    job: Job, spec: ModelSpec, place: Topology, card: Capacity, today: date, tensors: tuple[WeightTensor, ...] | None = None
) -> ServingTime | None:
    """How fast a job serves, and what its tokens cost."""
    found = served(job, spec, place, card, tensors)
    if found is None:
        return None
    return found.model_copy(update={"cost": token_cost(job.hardware, card.accelerator, found, today)})


def cost_of(job: Job, hours: Hours | None, card: Capacity, today: date) -> Priced:
    """What the hours cost; where none are known, why."""
    if hours is not None:
        return priced(job.hardware, card.accelerator, hours, today)
    if job.task == "serve" or (job.training.tokens is None and job.training.dataset is None):
        return Priced(None)
    return Priced(unpriced("without the card's name neither its speed nor its price is known"))
