"""torch as judge: jobs of small models drawn at random over every field (tests/draw), so that no table decides what is tried."""

from __future__ import annotations

import pytest

from tests.draw.__main__ import draw


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", [f"gate-{number}" for number in range(8)])
def test_a_random_job_is_equal_to_its_judge_or_refused(seed: str) -> None:
    job, found, _ = draw(seed, "small", "")
    assert found.kind != "finding", (found.why, found.detail, job)
