"""What a multiprocessor of an H20 reads, held against the runs of SGLang that it was fitted to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import log
from typing import Any
from unittest import mock

import numpy as np

from estimator import estimate
from estimator.hardware.accelerator import accelerator
from estimator.pipeline.remembered import answers
from estimator.timing.measured import Reading, reading
from tests.held_out import held_out
from tests.served_speeds import job_of, published, speed_of

CARD = "h20"
SHORT = (1, 6144, 30720)
"""Tokens of prompts of the rows that are fitted to: in longer ones most of the time is the prompt's."""
OTHER = "gptq"
"""Formats of rows that are left out: GPTQ in 8 bits is of one model, and that of mixtures ran without a kernel of its own."""


def rows(held: bool = False) -> list[dict[str, Any]]:
    """Those that the numbers were fitted to, or all that are held out."""
    found = [row for row in published()["runs"] if row["gpu"] == CARD and row["engine"] == "sglang"]
    found = [row for row in found if not row["weights"].startswith(OTHER) and held_out("h20_speeds", row["row"]) == held]
    return found if held else [row for row in found if row["prompt"] in SHORT]


def errors(rows: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Logarithms of our tokens per second over those measured."""
    found = [(speed_of(row, estimate(job_of(row))), row["tokens_per_second"]) for row in rows]
    return np.array([log(ours[0] / measured) for ours, measured in found if ours])


@contextmanager
def changed(kind: str, by: float) -> Iterator[None]:
    """With one of the numbers so many times as large."""
    known: dict[str, Reading] = reading(accelerator(CARD))
    known[kind] = known[kind].model_copy(update={"value": by * known[kind].value})
    answers.clear()
    with mock.patch("estimator.pipeline.step_time.reading", return_value=known):
        yield
    answers.clear()
