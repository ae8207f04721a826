"""torch as judge: whole training steps at full width, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Job, estimate
from estimator.specs.resolve import resolve
from tests.jobs import cases, counts, job_of
from tests.judge.step import fake_step


@pytest.mark.parametrize("case", cases("fake_steps"), ids=lambda case: case["name"])
def test_a_step_allocates_what_torch_allocates(case: dict[str, Any]) -> None:
    answer = estimate(job_of(case))
    job = Job.model_validate(answer.job)
    assert counts(answer) == fake_step(job, resolve(job.model).spec)
