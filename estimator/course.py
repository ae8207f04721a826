"""The course of a run: how many optimizer steps a dataset or a number of tokens is, and how long they take by the clock."""

from __future__ import annotations

import math
from typing import NamedTuple

from estimator.answer import Course, Time
from estimator.job import Training


class Hours(NamedTuple):
    """How long a run takes: expected, and between which bounds."""

    value: float
    low: float
    high: float


def course(training: Training, data: int, gpus: int, time: Time | None) -> Course | None:
    """Of a job in `data` parallel ranks on `gpus`; None if it is not said how much is processed. Hours are None without a time.

    Rows that are packed fill sequences; others take one each, and are cut where they are longer. The last batch of an epoch is
    as large as what is left, and takes as long as any.
    """
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
    hours = None if time is None else Hours(*(steps * each / 3600 for each in (time.step_seconds, *time.range_seconds)))
    return Course(
        steps=steps,
        tokens=round(tokens),
        computed_tokens=round(steps * per_step),
        epochs=epochs,
        hours=None if hours is None else hours.value,
        range_hours=None if hours is None else (hours.low, hours.high),
        gpu_hours=None if hours is None else hours.value * gpus,
    )
