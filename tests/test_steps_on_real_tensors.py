"""torch as judge: whole training steps, counted from real allocations, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs import cases
from tests.judged import STALE, judged, records


@pytest.mark.parametrize("case", cases("real_steps"), ids=lambda case: case["name"])
def test_a_step_allocates_what_torch_allocates(case: dict[str, Any]) -> None:
    verdict = judged("real_steps", case)
    assert verdict["estimated"] == verdict["counted"]
    assert records()["real_steps"].get(case["name"]) == verdict, STALE
