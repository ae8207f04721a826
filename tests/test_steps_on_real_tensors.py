"""torch as judge: whole training steps, counted from real allocations."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Job, estimate
from estimator.specs.resolve import resolve
from tests.jobs import cases, counts, job_of
from tests.judge.live import ALLOCATION_STEP
from tests.judge.real import real_step

# one allocation: the CPU makes a float32 tensor, of 4 bytes, of each of Python's numbers that it multiplies by


@pytest.mark.parametrize("case", cases("real_steps"), ids=lambda case: case["name"])
def test_a_step_allocates_what_torch_allocates(case: dict[str, Any]) -> None:
    answer = estimate(job_of(case))
    job = Job.model_validate(answer.job)
    counted = real_step(job, resolve(job.model).spec)
    assert counts(answer) == pytest.approx(counted, rel=0, abs=ALLOCATION_STEP)
