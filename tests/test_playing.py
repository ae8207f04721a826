"""What is remembered between questions changes no answer."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate, playing
from tests.jobs import cases

TRAINING: dict[str, Any] = {"sequence_length": 256, "activation_checkpointing": "none"}
JOB: dict[str, Any] = {"model": "gpt2", "hardware": {"gpu": "h100"}, "training": TRAINING}


def misses(job: dict[str, Any]) -> int:
    """How many plays a question takes."""
    before = playing._played.cache_info().misses
    estimate(job)
    return playing._played.cache_info().misses - before


@pytest.mark.parametrize("case", cases("golden"), ids=lambda case: case["name"])
def test_the_second_answer_is_the_first(case: dict[str, Any]) -> None:
    playing._played.cache_clear()
    first, second = estimate(case["job"]), estimate(case["job"])
    playing._played.cache_clear()
    assert first.to_json() == second.to_json() == estimate(case["job"]).to_json()


def test_what_does_not_matter_to_a_run_plays_nothing_anew() -> None:
    playing._played.cache_clear()
    assert misses(JOB) == 1
    assert misses({**JOB, "hardware": {"gpu": "h200"}}) == 0
    assert misses({**JOB, "training": {**TRAINING, "tokens": 1_000_000}}) == 0


def test_what_recomputation_saves_takes_one_play_more() -> None:
    playing._played.cache_clear()
    assert misses({**JOB, "training": {**TRAINING, "activation_checkpointing": "full"}}) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": "gpt2-medium"},
        {"training": {**TRAINING, "sequence_length": 257}},
        {"training": {**TRAINING, "expandable_segments": True}},
        {"task": "serve"},
        {"hardware": {"gpu": "a100-80gb"}},
        {"hardware": {"gpu": "h100", "gpus": 2}, "parallelism": {"strategy": "ddp"}},
    ],
)
def test_what_matters_does(change: dict[str, Any]) -> None:
    playing._played.cache_clear()
    estimate(JOB)
    assert misses({**JOB, **change}) == 1
