"""Steps, tokens and hours of a whole run."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.answer import Course
from estimator.errors import InvalidJob


def run_of(gpus: int = 1, **training: Any) -> Course:
    job = {
        "model": "gpt2",
        "hardware": {"gpu": "h100", "gpus": gpus},
        "training": {"sequence_length": 1000, "micro_batch_size": 2, "gradient_accumulation_steps": 5, **training},
    }
    found = estimate(job).run
    assert found
    return found


@pytest.mark.parametrize(
    ("training", "steps", "tokens", "computed"),
    [
        ({"tokens": 1_000_000}, 100, 1_000_000, 1_000_000),
        ({"tokens": 1_000_001}, 101, 1_000_001, 1_010_000),
        # 3,000 rows of 250 tokens fill 750 sequences: 75 batches of ten
        ({"dataset": {"rows": 3000, "row_tokens": 250}}, 75, 750_000, 750_000),
        ({"dataset": {"rows": 3000, "row_tokens": 250, "epochs": 3}}, 225, 2_250_000, 2_250_000),
        ({"dataset": {"rows": 3000, "row_tokens": 250, "packed": False}}, 300, 750_000, 3_000_000),
        # 3,001 rows: the last batch of each epoch holds one
        ({"dataset": {"rows": 3001, "row_tokens": 250, "packed": False, "epochs": 2}}, 602, 1_500_500, 6_020_000),
        # rows longer than a sequence are cut
        ({"dataset": {"rows": 10, "row_tokens": 4000, "packed": False}}, 1, 10_000, 10_000),
        ({"dataset": {"rows": 10, "row_tokens": 4000}}, 4, 40_000, 40_000),
    ],
)
def test_steps(training: dict[str, Any], steps: int, tokens: int, computed: int) -> None:
    found = run_of(**training)
    assert (found.steps, found.tokens, found.computed_tokens) == (steps, tokens, computed)


def test_gpu_hours_are_not_the_clocks() -> None:
    found = run_of(gpus=4, tokens=10**9)
    assert found.hours
    assert found.gpu_hours == pytest.approx(4 * found.hours)


def test_only_one_says_how_much() -> None:
    with pytest.raises(InvalidJob, match="exclude each other"):
        run_of(tokens=10, dataset={"rows": 1, "row_tokens": 1})


def test_without_either_there_is_no_run() -> None:
    assert estimate({"model": "gpt2"}).run is None
