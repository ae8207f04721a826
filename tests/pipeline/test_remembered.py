"""Answers that are remembered: the same bytes, shared by nobody, and only where nothing else can have changed them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from estimator import estimate
from estimator.pipeline import estimation, remembered, run
from estimator.pipeline.remembered import Answers
from tests.jobs import TINY, cases

JOB: dict[str, Any] = {"model": "gpt2", "hardware": {"gpu": "l4"}}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Jobs that were not answered from what is remembered."""
    found: list[Any] = []
    plain = run.played

    def watched(job: Any, *others: Any) -> Any:
        found.append(job)
        return plain(job, *others)

    monkeypatch.setattr(estimation, "played", watched)
    remembered.answers.clear()
    return found


@pytest.mark.parametrize("case", cases("golden"), ids=lambda case: case["name"])
def test_the_same_question_has_the_same_answer(case: dict[str, Any]) -> None:
    remembered.answers.clear()
    new = estimate(case["job"])
    again = estimate(case["job"])
    assert again is not new
    assert again == new
    assert again.to_json() == new.to_json()


def test_a_question_is_played_once(played: list[Any]) -> None:
    for _ in range(3):
        estimate(JOB)
    assert len(played) == 1


def test_no_caller_sees_what_another_changed(played: list[Any]) -> None:
    first = estimate(JOB)
    said = first.to_json()
    first.memory.phases.clear()
    first.warnings.append("not so")
    first.job["model"] = "another"
    second = estimate(JOB)
    assert second.to_json() == said
    second.memory.at_peak.clear()
    assert estimate(JOB).to_json() == said
    assert len(played) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (JOB, {**JOB, "training": {"sequence_length": 128}}),
        (JOB, {**JOB, "training": {"precision": "bf16-mixed"}}),  # a default that is written has no note
        ({**JOB, "model": TINY}, {**JOB, "model": {**TINY, "num_hidden_layers": 3}}),
    ],
)
def test_another_question_is_another(first: dict[str, Any], second: dict[str, Any], played: list[Any]) -> None:
    assert estimate(first).to_json() != estimate(second).to_json()
    assert len(played) == 2


@pytest.mark.parametrize("also", [{"allow_files": False}, {"every_rank": True}])
def test_what_else_is_asked_belongs_to_the_question(also: dict[str, Any], played: list[Any]) -> None:
    estimate(JOB)
    estimate(JOB, **also)
    assert len(played) == 2


def test_a_model_in_a_file_is_read_again(tmp_path: Path, played: list[Any]) -> None:
    path = tmp_path / "config.json"
    totals = []
    for layers in (2, 4):
        path.write_text(json.dumps({**TINY, "num_hidden_layers": layers}), encoding="utf-8")
        totals.append(estimate({**JOB, "model": str(path)}).parameters.total)
    assert totals[0] < totals[1]


def test_a_teacher_in_a_file_is_read_again(tmp_path: Path, played: list[Any]) -> None:
    path = tmp_path / "config.json"
    peaks = []
    for layers in (2, 4):
        path.write_text(json.dumps({**TINY, "num_hidden_layers": layers}), encoding="utf-8")
        objective = {"type": "distillation", "teacher": str(path), "prompt_length": 16}
        peaks.append(
            estimate({**JOB, "model": TINY, "training": {"objective": objective, "sequence_length": 64}}).memory.peak_bytes
        )
    assert peaks[0] != peaks[1]


def test_prices_of_ones_own_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[Any]) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    estimate(JOB)
    (tmp_path / "willitfit" / "specs").mkdir(parents=True)
    estimate(JOB)
    estimate(JOB)
    assert len(played) == 3


def test_they_are_bounded_by_bytes() -> None:
    answer = estimate(JOB)
    kept = Answers(most_bytes=100_000)
    for number in range(50):
        kept.add(b"%d" % number, answer)
        kept.add(b"%d" % number, answer)
    assert 50_000 < kept.nbytes <= 100_000
    assert kept.of(b"0") is None
    assert kept.of(b"49") == answer
    kept.clear()
    assert kept.nbytes == 0


def test_threads_may_share_them() -> None:
    answer = estimate(JOB)
    kept = Answers(most_bytes=60_000)

    def work(number: int) -> bool:
        kept.add(b"%d" % (number % 7), answer)
        return kept.of(b"%d" % (number % 7)) in (None, answer)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(200)))
    assert 0 < kept.nbytes <= 60_000
