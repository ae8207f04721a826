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
