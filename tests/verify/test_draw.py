"""Jobs drawn at random: that no field of a job is forgotten, and that what a draw once found stays mended."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from estimator import WillItFitError, estimate
from tests.draw.contract import choices, own, parts, rule, rules
from tests.draw.jobs import OWN
from tests.jobs import cases, counts

FIELDS = [(part, name) for part in parts() for name in part.model_fields]


@pytest.mark.parametrize(("part", "name"), FIELDS, ids=[f"{part.__name__}.{name}" for part, name in FIELDS])
def test_every_field_is_drawn_or_left_out_for_a_reason(part: type[BaseModel], name: str) -> None:
    said = rule(part, name)
    assert said is not None, (
        f"cases/drawn_fields.yaml says nothing of {part.__name__}.{name}: how often is it given, or why never?"
    )
    drawn = own(part, name, OWN) or said.values or choices(part.model_fields[name].annotation)
    assert said.left_out or drawn, f"cases/drawn_fields.yaml has no values for {part.__name__}.{name}"


def test_every_rule_is_of_a_field() -> None:
    known = {f"{base.__name__}.{name}" for part, name in FIELDS for base in part.__mro__}
    ruled = {f"{part}.{name}" for part, fields in rules().items() for name in fields}
    assert {*ruled, *OWN} <= known


@pytest.mark.parametrize("case", cases("drawn"), ids=lambda case: str(case["name"]))
def test_what_was_found_stays_mended(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(WillItFitError):
            estimate(case["job"])
        return
    answer = estimate(case["job"])
    memory = answer.memory
    served = case["job"].get("task") == "serve"
    assert case["counted"] == ({"resident": memory.resident_bytes, **memory.phases} if served else counts(answer))
