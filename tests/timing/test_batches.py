"""Batches of several lengths: memory of the longest, time of all."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Answer, estimate

SHORT, LONG = 256, 1024


def _answer(**training: Any) -> Answer:
    return estimate({"model": "llama-3.2-1b", "hardware": {"gpu": "a100-80gb"}, "training": {"tokens": 10**9, **training}})


def test_memory_is_that_of_the_longest_and_time_of_all() -> None:
    mixed = _answer(lengths=[{"tokens": SHORT, "share": 0.75}, {"tokens": LONG, "share": 0.25}])
    short, long = _answer(sequence_length=SHORT), _answer(sequence_length=LONG)
    assert mixed.memory == long.memory
    assert mixed.time
    assert short.time
    assert long.time
    assert mixed.time.step_seconds == pytest.approx(0.75 * short.time.step_seconds + 0.25 * long.time.step_seconds)
    tokens = mixed.time.step_seconds * mixed.time.tokens_per_second
    assert tokens == pytest.approx(0.75 * SHORT + 0.25 * LONG)
    assert min(short.time.mfu, long.time.mfu) <= mixed.time.mfu <= max(short.time.mfu, long.time.mfu)
    assert mixed.job["training"]["sequence_length"] == LONG
    assert estimate(mixed.job).memory == mixed.memory  # the settled job says the same


def test_one_length_is_the_plain_job() -> None:
    assert _answer(lengths=[{"tokens": LONG, "share": 1}]).time == _answer(sequence_length=LONG).time


def test_a_pair_has_the_tokens_of_two_answers() -> None:
    pairs = _answer(sequence_length=LONG, objective={"type": "dpo", "reference": "precomputed"})
    assert pairs.time
    assert pairs.time.step_seconds * pairs.time.tokens_per_second == pytest.approx(2 * LONG)
    assert pairs.run
    assert pairs.run.parts["training"] == pytest.approx(-(-(10**9) // (2 * LONG)) * pairs.time.step_seconds / 3600)
