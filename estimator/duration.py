"""From a played job to its time: every kind of stage and every length of its batches, on its card and its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from estimator.answer import Time
from estimator.errors import NotModelled
from estimator.hardware.accelerator import Accelerator
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import Capacity
from estimator.job import Job
from estimator.job.training import Bucket
from estimator.parallel.ranks import alike
from estimator.parallel.topology import Topology
from estimator.playing import Play, play
from estimator.specs.spec import ModelSpec
from estimator.timing.assumed import assumed_time, decode_time
from estimator.timing.exchange import Wires
from estimator.timing.kernels import Clock
from estimator.timing.links import links
from estimator.timing.measured import curves
from estimator.timing.step import stage, training_time
from estimator.timing.times import average_time
from estimator.training.plan import precision_of


def duration(job: Job, spec: ModelSpec, place: Topology, card: Capacity, played: Play) -> Time | None:
    """The time of an optimizer step, or of serving one token; None where the card has no name, or no peak for the job."""
    if card.accelerator is None:
        return None
    if job.task == "serve":
        if job.serving.engine == "llama.cpp" and job.serving.gpu_layers is not None and job.serving.gpu_layers <= spec.depth:
            return None  # the host's part takes most of it
        resident = played.phases.phases[-1].end_bytes
        return decode_time(resident, job.serving.concurrency, place.gpus, card.accelerator)
    training = job.training
    times = []
    for bucket in training.lengths or [Bucket(tokens=training.sequence_length, share=1)]:
        one = job if bucket.tokens == training.sequence_length else _of_length(job, bucket.tokens)
        times.append((bucket.share, _step(one, spec, place, card, played if one is job else None)))
    return average_time(times)


def _step(job: Job, spec: ModelSpec, place: Topology, card: Capacity, played: Play | None) -> Time | None:
    """The time of a step whose batches have one length."""
    accelerator = card.accelerator
    assert accelerator is not None
    compute = precision_of(job, place).compute.name
    if job.training.tf32 and "tf32" in accelerator.peak:
        compute = "tf32"
    places = alike(job, spec, place)
    alone = played if place.pipeline == 1 else None
    plays = {one: alone or play(job, spec, one, gpu(job, card)) for one in dict.fromkeys(places)}
    try:
        return _timed(job, place, accelerator, compute, places, plays)
    except NotModelled:
        steps = job.training.gradient_accumulation_steps
        tokens = job.training.tokens_per_pass * steps * place.data
        return assumed_time(plays[places[0]].build.tape, accelerator, compute, steps, tokens, place.gpus)


def _timed(
    job: Job, place: Topology, card: Accelerator, compute: str, places: Sequence[Topology], plays: Mapping[Topology, Play]
) -> Time:
    measured = curves(card.name)
    clock = Clock(card, measured, compute == "tf32")
    wires = Wires(measured, links(job.hardware, card), place, job.parallelism.replicas or 1)
    timed = {one: stage(job, played, clock, wires) for one, played in plays.items()}
    return training_time(job, [timed[one] for one in places], clock, compute, place.gpus, place.data)


def _of_length(job: Job, tokens: int) -> Job:
    """The job with all batches of one length."""
    changes = {"sequence_length": tokens, "lengths": None}
    return job.model_copy(update={"training": job.training.model_copy(update=changes)})
