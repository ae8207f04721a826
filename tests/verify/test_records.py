"""What an interpreter is asked (`python -m tests.records`) finds what is wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests import records
from tests.jobs import cases, job_of, moments


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({"a": [1, 2.0, "x", None]}, {"a": [1, 2.0 * (1 + 1e-15), "x", None]}, True),
        (1.0, 1.0 + 1e-11, False),
        (1, 2, False),
        (1, 1.0, False),
        (True, 1, False),
        ([1], [1, 1], False),
        ({"a": 1}, {"b": 1}, False),
        ("1.0", "1.00", False),
    ],
)
def test_answers_are_alike_but_for_the_last_bits_of_floats(a: Any, b: Any, same: bool) -> None:
    assert records.alike(a, b) is same


def test_a_case_that_is_a_byte_off_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases("real_steps") if "within" not in case)
    said = records.records()["real_steps"][case["name"]]
    answer = moments(job_of(case))
    assert records.difference("real_steps", case, answer) == ""
    monkeypatch.setitem(said, "backward", said["backward"] + 1)
    assert str(said["backward"]) in records.difference("real_steps", case, answer)
    assert records.difference("real_steps", {**case, "within": 0.001}, answer)  # says no reason, and is not that far off
    assert "tests.judged" in records.difference("real_steps", {**case, "name": "new"}, answer)


def test_one_wrong_case_is_an_exit_code_and_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(case for case in cases("real_steps") if "within" not in case)
    monkeypatch.setattr(records, "cases", lambda name: [case] if name == "real_steps" else [])
    assert records.main() == 0
    fine = capsys.readouterr().out.splitlines()
    said = records.records()["real_steps"][case["name"]]
    monkeypatch.setitem(said, "resident", said["resident"] + 512)
    assert records.main() == 1
    wrong = capsys.readouterr().out.splitlines()
    assert ": 1 of 1 steps" in fine[-2]
    assert ": 0 of 1 steps" in wrong[-2]
    assert wrong[0].startswith(f"real_steps {case['name']}: ")
    assert wrong[-1] == fine[-1]


def test_of_a_share_each_case_has_its_turn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few, asked = cases("real_steps")[:4], list[str]()

    def noted(judge: str, case: dict[str, Any], _: dict[str, int]) -> str:
        asked.append(case["name"])
        return ""

    monkeypatch.setattr(records, "cases", lambda name: few if name == "real_steps" else [])
    monkeypatch.setattr(records, "golden", list)
    monkeypatch.setattr(records, "difference", noted)
    for number in range(records.SHARE):
        monkeypatch.setattr(records, "turn", partial(int, number))
        assert records.main(["--share"]) == 0
    assert sorted(asked) == sorted(case["name"] for case in few)
    assert ": 2 of 2 steps" in capsys.readouterr().out
