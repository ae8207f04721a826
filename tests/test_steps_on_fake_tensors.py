"""torch as judge: whole training steps at full width, to the byte.

A case that is not equal says how far off it is (`within`, of each count) and `why`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs import cases
from tests.judged import STALE, judged, records

WORST = 0.005


@pytest.mark.parametrize("case", cases("fake_steps"), ids=lambda case: case["name"])
def test_a_step_allocates_what_torch_allocates(case: dict[str, Any]) -> None:
    verdict = judged("fake_steps", case)
    estimated, counted = verdict["estimated"], verdict["counted"]
    if "within" in case:
        assert case["why"]
        assert case["within"] <= WORST
        error = max(abs(estimated[name] / counted[name] - 1) for name in counted)
        assert case["within"] / 10 < error <= case["within"], (estimated, counted)
    else:
        assert estimated == counted
    assert records()["fake_steps"].get(case["name"]) == verdict, STALE
