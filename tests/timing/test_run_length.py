"""Steps, tokens and hours of a whole run."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import Course
from estimator.contract.errors import InvalidJob


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


NOTHING_ELSE = {"set_up": 0, "failures": 0, "save_bandwidth": 10**6}


def test_hours_are_the_sum_of_their_parts() -> None:
    found = run_of(gpus=8, tokens=10**9, run={"evaluate_every": 1000, "evaluate_rows": 300, "save_every": 500})
    assert found.hours
    assert found.hours == pytest.approx(sum(found.parts.values()))
    assert set(found.parts) == {"training", "set_up", "evaluation", "saving", "restarts"}
    assert found.range_hours
    assert found.range_hours[0] < found.hours < found.range_hours[1]


def test_without_the_rest_a_run_is_its_steps() -> None:
    job = {"model": "gpt2", "hardware": {"gpu": "h100"}, "training": {"tokens": 10**9, "run": NOTHING_ELSE}}
    found = estimate(job)
    assert found.run
    assert found.run.hours
    assert found.time
    assert found.run.hours == pytest.approx(found.run.steps * found.time.step_seconds / 3600, rel=1e-5)


def test_evaluation_is_forward_only() -> None:
    """All tokens forward once more: a third of the arithmetic where nothing is repeated, and less for attention's backward."""
    run = {**NOTHING_ELSE, "evaluate_every": 100, "evaluate_rows": 1000}
    found = run_of(tokens=10**7, activation_checkpointing="none", run=run)
    assert found.steps == 1000
    assert 0.97 / 3 < found.parts["evaluation"] / found.parts["training"] < 1 / 3


def test_saving_takes_its_bytes() -> None:
    """GPT-2's 124,439,808 weights in float32, ten times at a gigabyte a second; a node writes its part of what is sharded."""
    run = {**NOTHING_ELSE, "save_every": 100, "save_bandwidth": 1}
    found = run_of(tokens=10**7, run=run)
    assert found.parts["saving"] * 3600 == pytest.approx(10 * 4 * 124_439_808 / 1e9, rel=0.001)


@pytest.mark.parametrize(("gpus", "failures", "lost", "longer"), [(1, 1, 12, 2.0), (8, 0.3, 1, 1 / 0.9), (8, 10, 10, 10.0)])
def test_failures_lengthen_a_run(gpus: int, failures: float, lost: float, longer: float) -> None:
    """Half of each day is lost to a failure a day of twelve hours; and never more than nine tenths."""
    found = run_of(gpus=gpus, tokens=10**9, run={**NOTHING_ELSE, "failures": failures, "hours_lost": lost})
    assert found.hours == pytest.approx(longer * (found.parts["training"] + found.parts["saving"]))


def test_evaluation_is_said_whole() -> None:
    with pytest.raises(InvalidJob, match="evaluate_every and evaluate_rows come together"):
        run_of(tokens=10, run={"evaluate_every": 10})


def test_assumptions_of_a_run_are_stated() -> None:
    job = {"model": "gpt2", "hardware": {"gpu": "h100"}, "training": {"tokens": 10**9}}
    said = next(line for line in estimate(job).assumptions if line.startswith("of the run: "))
    for part in ("set-up 0.17 hours", "failures 0.0005", "saved once", "no evaluation"):
        assert part in said


def test_only_one_says_how_much() -> None:
    with pytest.raises(InvalidJob, match="exclude each other"):
        run_of(tokens=10, dataset={"rows": 1, "row_tokens": 1})


def test_without_either_there_is_no_run() -> None:
    assert estimate({"model": "gpt2"}).run is None
