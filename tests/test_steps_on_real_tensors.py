"""torch as judge: whole training steps, counted from real allocations."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.verify.live import ALLOCATION_STEP
from tests.jobs import cases
from tests.judged import STALE, judged, records

# one allocation: the CPU makes a float32 tensor, of 4 bytes, of each of Python's numbers that it multiplies by


@pytest.mark.parametrize("case", cases("real_steps"), ids=lambda case: case["name"])
def test_a_step_allocates_what_torch_allocates(case: dict[str, Any]) -> None:
    verdict = judged("real_steps", case)
    assert verdict["estimated"] == pytest.approx(verdict["counted"], rel=0, abs=ALLOCATION_STEP)
    assert records()["real_steps"].get(case["name"]) == verdict, STALE
