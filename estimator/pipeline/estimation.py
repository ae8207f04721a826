"""From a job to its answer: spec and hardware, the tape, its replay, then memory, time and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from estimator.contract.answer import (
    Answer,
    Memory,
    Parameters,
    ServingTime,
    Time,
    Versions,
)
from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import Job, read_job
from estimator.contract.job.adapter import Lora
from estimator.contract.notes import Said, all_said
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.families import parameters
from estimator.families.build import Builder
from estimator.families.other import OtherSpec
from estimator.hardware.capability import gpu
from estimator.parallel.topology import Topology
from estimator.pipeline.advice import Trial, advice, partly
from estimator.pipeline.checkpoint_budget import recomputation
from estimator.pipeline.judged import Judged, judge_run, overflows
from estimator.pipeline.notes.gathered import texts
from estimator.pipeline.notes.of_run import notes_of
from estimator.pipeline.remembered import answers, question_of, settled
from estimator.pipeline.run import Run, played
from estimator.pipeline.step_time import duration
from estimator.pipeline.whole_run import cost_of, course_of, hours_of, served_of
from estimator.pricing.energy import energy
from estimator.serving.engines import served_by
from estimator.simulation.ranks import traffic
from estimator.specs.resolve import Model
from estimator.timing.run_length import Hours


def estimate(
    job: Job | Mapping[str, Any] | str | Path, allow_files: bool = True, every_rank: bool = False, today: date | None = None
) -> Answer:
    """The answer to a job: a `Job`, a mapping, or the path of a YAML file.

    `allow_files` False refuses models named by a path, as a service must. `every_rank`: all stages of a pipeline are described,
    not only those one of which needs most. `today`: the day by which a price is old; without it, this day. Raises `InvalidJob`
    for what cannot be read or does not fit together, `NotModelled` for what this version has no model of, and `UnknownName`.
    The same question again is answered with a copy of its answer.
    """
    given, day = read_job(job), today or date.today()
    question = question_of(given, allow_files, every_rank, day)
    if question is not None and (known := answers.of(question)) is not None:
        return known
    answer = _answer(played(given, allow_files, every_rank), day, allow_files)
    if question is not None and settled(given, allow_files):
        answers.add(question, answer)
    return answer


def step_time(job: Job, allow_files: bool = True) -> tuple[Time | None, Hours | None] | None:
    """The time of a step, and of the whole run, without the verdict; None if even the peak is more than the card offers."""
    run = played(job, allow_files)
    if overflows(run):
        return None
    time = duration(run.job, run.model.spec, run.place, run.card, run.simulation)
    return time, hours_of(run.job, course_of(run, time))


def judged_and_timed(job: Job | Mapping[str, Any], allow_files: bool = True) -> tuple[Judged, Time | None]:
    """What `estimate` says of a job's memory and verdict, and the time of a step (of one that serves, to decode)."""
    run = played(job, allow_files)
    return judge_run(run), _step(run, _served(run, date.today()))


def judged_and_served(job: Job | Mapping[str, Any], allow_files: bool = True) -> tuple[Judged, ServingTime | None]:
    """What `estimate` says of a serving job's memory and verdict, and how fast it serves where it fits."""
    run = played(job, allow_files)
    found = judge_run(run)
    return found, None if found.verdict.fits is False else _served(run, date.today())


def _served(run: Run, today: date) -> ServingTime | None:
    """How fast it serves; None where it trains, or no time is known."""
    if run.job.task != "serve":
        return None
    return served_of(run.job, run.model.spec, run.place, run.card, today, run.tensors)


def _step(run: Run, serving: ServingTime | None) -> Time | None:
    return serving.decode if serving else duration(run.job, run.model.spec, run.place, run.card, run.simulation)


def time_of(job: Job | Mapping[str, Any], allow_files: bool = True) -> Time | None:
    """The time of a step (of one that serves, to decode), whether the job fits or not; None where it is not known."""
    run = played(job, allow_files)
    return _step(run, _served(run, date.today()))


def tokens_per_second(job: Job | Mapping[str, Any], allow_files: bool = True) -> float | None:
    """How fast a job trains, or writes its answers, on all GPUs; None where that is not known."""
    try:
        time = time_of(job, allow_files)
    except NotModelled:
        return None
    return time.tokens_per_second if time else None


def _answer(run: Run, today: date, allow_files: bool) -> Answer:
    job, model, place, card = run.job, run.model, run.place, run.card
    build = run.simulation.build
    found = judge_run(run)
    memory, host, verdict = found.memory, found.host, found.verdict
    serving = _served(run, today)
    time = _step(run, serving)
    whole = course_of(run, time)
    hours = hours_of(job, whole)
    cost = cost_of(job, hours, card, today)
    notes = notes_of(run, found, time, whole, cost, _suggestions(run, found, allow_files))
    return Answer(
        fits=verdict.fits,
        verdict=verdict.verdict,
        reason=verdict.reason,
        memory=memory,
        host=host,
        parameters=_parameters(build, model, place, job),
        time=time,
        run=whole,
        serving=serving,
        communication=traffic(build.tape, job.training.gradient_accumulation_steps),
        ranks=run.ranks,
        recomputation=recomputation(job, model.spec, place, gpu(job, card), run.simulation),
        cost=cost.cost,
        energy=energy(job.hardware, card.accelerator, place.gpus, hours) if hours else None,
        job=job.model_dump(mode="json"),
        **texts(notes),
        notes=notes,
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _suggestions(run: Run, found: Judged, allow_files: bool) -> Iterator[Said]:
    verdict = found.verdict
    yield from all_said("expandable-segments", verdict.suggestions, "training.expandable_segments")
    if verdict.fits is False and not verdict.host:
        yield from _advice(run, found.memory, allow_files)


def _advice(run: Run, memory: Memory, allow_files: bool) -> list[Said]:
    given = run.given.model_dump(exclude_unset=True)

    def attempt(change: dict[str, dict[str, Any]]) -> Trial | None:
        asked = {**given, **{part: {**given.get(part, {}), **settings} for part, settings in change.items()}}
        try:
            tried = played(asked, allow_files)
            if tried.job.task == "train" and overflows(tried):
                return Trial(tried.simulation.phases.peak.peak_bytes + tried.beside.total_bytes, False, least=True)
            found = judge_run(tried)
        except (InvalidJob, NotModelled):
            return None
        return Trial(found.memory.total_bytes, found.verdict.fits, host=found.verdict.host)

    engine = served_by(run.job)
    left = partly(engine.fitting(run.job.serving, run.model.spec), attempt, engine.unasked) if engine else []
    return [*left, *advice(run.job, memory, run.model.spec, attempt)]


def _parameters(build: Builder, model: Model, place: Topology, job: Job) -> Parameters:
    """Of the whole model, adapters included, layers that predict further tokens not; a tensor-parallel rank holds a part."""
    here = place.gpus == place.data and place.expert == 1 and not job.training.mtp_num_layers
    whole = build.parameters if here else parameters(model.spec)
    mixed = isinstance(model.spec, OtherSpec) and model.spec.mixture
    found = Parameters(
        total=sum(p.total for p in whole),
        trainable=sum(p.total for p in whole if p.trainable) if job.task == "train" else 0,
        active=None if mixed else sum(p.active * p.times for p in whole),
    )
    if whole is not build.parameters and job.training.implementation == "megatron" and isinstance(job.training.adapter, Lora):
        from estimator.megatron.config import config
        from estimator.megatron.lora import trained

        total, active = trained(config(model.spec), job.training.adapter.rank)
        return Parameters(total=found.total + total, trainable=total, active=(found.active or 0) + active)
    return found
