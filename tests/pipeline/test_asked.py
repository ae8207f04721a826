"""Questions that people really asked."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from estimator import estimate
from tests.jobs import cases

KEYS = {"name", "url", "job", "verdict", "figures", "peak_phase"}


@pytest.mark.parametrize("case", cases("asked"), ids=lambda case: case["name"])
def test_the_answer_is_what_turned_out_to_be_true(case: dict[str, Any]) -> None:
    assert set(case) <= KEYS
    answer = estimate(case["job"])
    assert answer.verdict in case.get("verdict", [answer.verdict])
    assert answer.memory.peak_phase == case.get("peak_phase", answer.memory.peak_phase)
    for path, (low, high) in case.get("figures", {}).items():
        assert low <= reduce(getattr, path.split("."), answer) <= high, path


@pytest.mark.parametrize(
    ("job", "warned"),
    [
        ({"model": "gpt2", "hardware": {"gpu": "t4"}}, True),
        ({"model": "gpt2", "hardware": {"gpu": "t4"}, "training": {"precision": "16-true"}}, False),
        ({"model": "gpt2", "hardware": {"gpu": "t4"}, "task": "serve", "serving": {"weights": "int8"}}, True),
        ({"model": "gpt2", "hardware": {"gpu": "t4"}, "task": "serve", "serving": {"weights": "fp16"}}, False),
        ({"model": "gpt2", "hardware": {"gpu": "l4"}}, False),
    ],
)
def test_a_card_without_bf16_is_named(job: dict[str, Any], warned: bool) -> None:
    assert any("no bf16 arithmetic" in said for said in estimate(job).warnings) is warned
