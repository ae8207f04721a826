"""The tables of whole steps: no two cases share a name, by which their records are kept, and no family is without one."""

from __future__ import annotations

import pytest

from estimator.families import FAMILIES, spec_class
from estimator.specs.resolve import resolve
from tests.jobs import cases, job_of, table

RUNNING = {kind for kind in FAMILIES if spec_class(kind).runs}


@pytest.mark.parametrize("judge", ["fake_steps", "real_steps"])
def test_every_family_has_a_case(judge: str) -> None:
    given = [job_of(case)["model"] for case in cases(judge)]
    assert {resolve(model).spec.model_type for model in given} == RUNNING


@pytest.mark.parametrize("judge", ["fake_steps", "real_steps"])
def test_no_two_cases_share_a_name(judge: str) -> None:
    names = [case["name"] for case in cases(judge)]
    assert len(names) == len(set(names))


def test_every_family_can_be_drawn_at_random() -> None:
    assert set(table("random_models")) - {"shared"} == RUNNING
