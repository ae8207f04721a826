"""torch as judge of whole training steps, to the byte: at full width on fake tensors, and of small models on real ones.

Every estimate is held against what torch counted when it was last asked about all cases (`python -m tests.judged`).
test_steps_anew.py asks it again about some of them.

A case that is not equal says how far off it is (`within`, of each count) and `why`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs import cases, job_of, moments
from tests.records import JUDGES, difference

ALL = [pytest.param(judge, case, id=f"{judge} {case['name']}") for judge in JUDGES for case in cases(judge)]


@pytest.mark.parametrize(("judge", "case"), ALL)
def test_a_step_allocates_what_torch_allocates(judge: str, case: dict[str, Any]) -> None:
    assert not difference(judge, case, moments(job_of(case)))
