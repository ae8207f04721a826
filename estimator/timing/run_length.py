"""The course of a run: how many optimizer steps a dataset or a number of tokens is, and how long all of it takes by the clock.

    hours = (steps + set-up + evaluation + saving) / (1 − n·r·L)

n GPUs fail at the rate r, and L hours of the run are lost each time. What the job does not say of these is an assumption, in
run_length.yaml with its source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from estimator.contract.answer import Course, Time
from estimator.contract.job import Job, Training
from estimator.contract.job.run import Run
from estimator.contract.units import GB
from estimator.facts.fact import MeasuredFact, measured

FILE = Path(__file__).parent / "run_length.yaml"
TRAINING, SET_UP, EVALUATION, SAVING, RESTARTS = "training", "set_up", "evaluation", "saving", "restarts"
MOST_LOST = 0.9
"""Share of the time that failures may take: where they would take all, the run never ends, and no hours say so."""


class Hours(NamedTuple):
    """How long a run takes: expected, and between which bounds."""

    value: float
    low: float
    high: float


class Done(NamedTuple):
    """What a run's other parts depend on: the share of a step's arithmetic that is forward, and the bytes that a node writes of a
    checkpoint."""

    forward: float
    saved_bytes: int


def facts() -> dict[str, MeasuredFact]:
    """The assumptions, by name."""
    return measured(FILE)


def course(job: Job, data: int, gpus: int, time: Time | None, done: Callable[[], Done]) -> Course | None:
    """Steps, tokens and hours of the whole run, in `data` parallel ranks on `gpus`; None if the job does not say how much is
    processed. Hours are None without a time.

    Rows that are packed fill sequences; others take one each, and are cut where they are longer. The last batch of an epoch is as
    large as what is left, and takes as long as any.
    """
    training = job.training
    per_step = training.tokens_per_pass * training.gradient_accumulation_steps * data
    sequences = per_step / training.mean_length
    if training.tokens is not None:
        steps, tokens, epochs = math.ceil(training.tokens / per_step), float(training.tokens), None
    elif training.dataset is not None:
        rows, epochs = training.dataset, training.dataset.epochs
        filled = math.ceil(rows.rows * rows.row_tokens / training.mean_length) if rows.packed else rows.rows
        steps = math.ceil(math.ceil(filled / sequences) * epochs)
        each = rows.row_tokens if rows.packed else min(rows.row_tokens, training.longest)
        tokens = rows.rows * each * epochs
    else:
        return None
    parts = None if time is None else _parts(training, steps, sequences, gpus, time, done())
    hours = None if parts is None else Hours(*(sum(part[at] for part in parts.values()) for at in range(3)))
    return Course(
        steps=steps,
        tokens=round(tokens),
        computed_tokens=round(steps * per_step),
        epochs=epochs,
        hours=None if hours is None else hours.value,
        range_hours=None if hours is None else (hours.low, hours.high),
        parts={} if parts is None else {name: part.value for name, part in parts.items() if part.value},
        gpu_hours=None if hours is None else hours.value * gpus,
    )


def _parts(training: Training, steps: int, sequences: float, gpus: int, time: Time, done: Done) -> dict[str, Hours]:
    """Hours by what they go to. `sequences`: of a step."""
    asked = training.run
    step = Hours(*(seconds / 3600 for seconds in (time.step_seconds, *time.range_seconds)))
    evaluations, evaluated = steps // asked.evaluate_every if asked.evaluate_every else 0, asked.evaluate_rows or 0
    passes = evaluations * math.ceil(evaluated / sequences) * done.forward
    saves = max(1, steps // asked.save_every) if asked.save_every else 1
    storage = _given(asked, "save_bandwidth")
    found = {
        TRAINING: Hours(*(steps * each for each in step)),
        SET_UP: _given(asked, "set_up"),
        EVALUATION: Hours(*(passes * each for each in step)),
        SAVING: Hours(*(saves * done.saved_bytes / GB / speed / 3600 for speed in (storage.value, storage.high, storage.low))),
    }
    longer = [_lost(asked, gpus, at) for at in range(3)]
    sums = [sum(part[at] for part in found.values()) for at in range(3)]
    return found | {RESTARTS: Hours(*(whole * share / (1 - share) for whole, share in zip(sums, longer, strict=True)))}


def _lost(asked: Run, gpus: int, at: int) -> float:
    """The share of the time that failures take: expected, or at one of the bounds."""
    return min(MOST_LOST, gpus * _given(asked, "failures")[at] / 24 * _given(asked, "hours_lost")[at])


def least_hours(training: Training, gpus: int, hours: float) -> float:
    """Expected hours of a run whose steps take so many, without evaluation and saving."""
    return (hours + _given(training.run, "set_up").value) / (1 - _lost(training.run, gpus, 0))


def _given(asked: Run, name: str) -> Hours:
    """What the job says, or what is assumed, expected and between which bounds."""
    said, fact = getattr(asked, name), facts()[name]
    return Hours(fact.value, fact.low, fact.high) if said is None else Hours(said, said, said)


def assumed(job: Job) -> list[str]:
    """What is taken for granted of a run."""
    asked, known = job.training.run, facts()
    said = [
        f"{text} {known[name].value:g} {known[name].unit} ({known[name].low:g} to {known[name].high:g})"
        for name, text in (
            (SET_UP, "set-up"),
            ("failures", "failures"),
            ("hours_lost", "each losing"),
            ("save_bandwidth", "checkpoints written at"),
        )
        if getattr(asked, name) is None
    ]
    saved = "saved once, at the end" if asked.save_every is None and job.host.save != "none" else ""
    evaluated = "" if asked.evaluate_every else "no evaluation"
    return [f"of the run: {', '.join(filter(None, (*said, saved, evaluated)))} (training.run)"]
