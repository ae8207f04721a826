"""The sentences of an answer to a job that was played."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from estimator.contract.answer import (
    Course,
    Note,
    Time,
)
from estimator.contract.job import Job
from estimator.contract.notes import Said, all_said
from estimator.hardware.capability import gpu
from estimator.pipeline.checkpoint_budget import best_segments
from estimator.pipeline.defaults import defaults_used
from estimator.pipeline.judged import Judged
from estimator.pipeline.notes.gathered import assumptions, of_kind, warnings, what_stays
from estimator.pipeline.notes.left_out import not_modelled
from estimator.pipeline.run import Run
from estimator.pricing.cost import Priced
from estimator.simulation.counting import Counted, versions
from estimator.specs.resolve import OF_THE_JOB
from estimator.timing.run_length import assumed


def notes_of(
    run: Run, found: Judged, time: Time | None, whole: Course | None, cost: Priced, suggestions: Iterable[Said]
) -> list[Note]:
    """In the order in which an answer gives them."""
    return [
        *of_kind("assumption", _assumptions(run, whole, cost)),
        *of_kind("default", defaults_used(run.given, run.job, run.reasons)),
        *of_kind("warning", _warnings(run, found, cost)),
        *of_kind("suggestion", suggestions),
        *of_kind("not modelled", not_modelled(run.job, time)),
    ]


def _assumptions(run: Run, whole: Course | None, cost: Priced) -> Iterator[Said]:
    job, model, place, card = run.job, run.model, run.place, run.card
    of_model = (said if run.tensors is None else said.removesuffix(OF_THE_JOB) for said in model.assumptions)
    yield from all_said("model", of_model, "model")
    yield from all_said("hardware", card.assumptions, "hardware")
    yield from all_said("budget", run.chosen, "training.activation_checkpointing")
    segments = best_segments(job, model.spec, place, gpu(job, card))
    yield from all_said("segments", segments, "training.activation_checkpointing")
    yield from assumptions(job, run.model.spec, place, card)
    if whole is not None and whole.hours is not None:
        yield from all_said("run-length", assumed(job), "training.run")
    yield from all_said("price", cost.assumptions, "hardware")
    yield from _own(job)


def _own(job: Job) -> Iterator[Said]:
    """What was measured on one's own machine and is used."""
    if (own := job.calibration) is not None:
        context = f", a context of {own.context}" if own.context else ""
        made = f"calibrated by {own.records} records of {own.card}" + (f", {own.as_of}" if own.as_of else "")
        text = f"{made}: kernels take {own.kernels:g} and exchanges {own.exchanges:g} of what is reckoned{context}"
        yield Said("calibrated", text, "calibration")


def _counted(run: Run, count: Counted) -> Iterator[Said]:
    """That the bytes are not derived, and what torch did for them."""
    on = " and ".join(f"{name} {release}" for name, release in versions().items() if name != "peft")
    text = (
        f"counted, not derived: {run.model.spec.refusal}, so {on} ran its step on tensors without data "
        f"({count.how}; {count.seconds:.1f} seconds, remembered); its time, and which layer the peak is in, are not known"
    )
    yield Said("counted-by-torch", text, "model")
    yield from all_said("counted-run", count.remarks, "model")


def _warnings(run: Run, found: Judged, cost: Priced) -> Iterator[Said]:
    if (count := run.simulation.counted) is not None:
        yield from _counted(run, count)
    yield from warnings(run.job, run.model.spec, run.place, run.card, run.simulation.build.tape)
    if found.uneven:
        yield Said("uneven", found.uneven, "parallelism.strategy")
    yield from what_stays(run.job, found.memory)
    yield from all_said("price", cost.warnings, "hardware")
