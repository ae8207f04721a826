"""Whether vLLM and SGLang start, against what they did (tests/data/engine_verdicts.yaml, and every start that was logged)."""

from __future__ import annotations

import pytest

from tests.serving.engine_verdicts import TABLE, answered, verdicts

RIGHT = 0.95
"""Share of verdicts that are right at least; each of the others says why it is not."""


def test_most_are_right_and_the_others_are_explained() -> None:
    every = list(verdicts())
    wrong = {name: why for name, started, ours, _, why in every if started is not ours}
    assert len(every) > 60
    assert wrong == {row["name"]: row["wrong"] for row in TABLE if "wrong" in row}
    assert 1 - len(wrong) / len(every) >= RIGHT


@pytest.mark.parametrize(
    "row", [row for row in TABLE if "longest" in row and "wrong" not in row], ids=lambda row: str(row["name"])
)
def test_the_longest_context_is_near(row: dict[str, str]) -> None:
    answer = answered(row["name"])
    assert answer is not None
    assert answer.memory.engine is not None
    assert answer.memory.engine.longest_context == pytest.approx(row["longest"], rel=0.02)
