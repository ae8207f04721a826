"""What differs between two jobs: settings, memory and seconds, by every door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import app
from estimator import InvalidJob, diff_files, estimate
from estimator.cli.main import main
from estimator.planner.diff import diff

ON: dict[str, Any] = {"model": "llama-3.2-1b", "hardware": {"gpu": "rtx-4090"}}
A: dict[str, Any] = {**ON, "training": {"sequence_length": 512, "adapter": {}, "activation_checkpointing": "none"}}
B: dict[str, Any] = {**ON, "training": {"sequence_length": 1024, "activation_checkpointing": "full"}}
CASES = [
    (A, B),
    (A, {**A, "hardware": {"gpu": "h100"}}),
    (A, {"model": "llama-3.2-1b", "hardware": {"gpu": "rtx-4090"}, "task": "serve"}),
    ("model_name_or_path: gpt2\nmax_length: 512\n", "model_name_or_path: gpt2\nmax_length: 512\ngradient_checkpointing: false\n"),
]


@pytest.mark.parametrize(("a", "b"), CASES)
def test_parts_sum_to_the_difference(a: Any, b: Any) -> None:
    found = diff({"a": a, "b": b}, on="rtx-4090" if isinstance(a, str) else None)
    assert sum(one.b_bytes - one.a_bytes for one in found.memory) == found.b.total_bytes - found.a.total_bytes
    assert found.settings
    assert all(one.a != one.b for one in found.settings)
    assert {one.name for one in found.memory if one.a_bytes == one.b_bytes} == set()


def test_what_is_said_of_each() -> None:
    found = diff({"a": A, "b": B})
    settings = {one.field: (one.a, one.b) for one in found.settings}
    assert settings["training.sequence_length"] == (512, 1024)
    assert settings["training.activation_checkpointing"] == ("none", "full")
    reasons = {one.field: (one.why_a, one.why_b) for one in found.settings}
    assert reasons["training.sequence_length"] == ("", "")
    assert reasons["training.adapter.rank"] == ("default", "")
    assert reasons["host.save"][0] == "what was trained"
    assert not any(field.startswith("serving") for field in settings)
    first, second = estimate(A), estimate(B)
    assert (found.a.total_bytes, found.b.total_bytes) == (first.memory.total_bytes, second.memory.total_bytes)
    assert first.time is not None
    assert second.time is not None
    longer = second.time.step_seconds - first.time.step_seconds
    assert sum(one.b_seconds - one.a_seconds for one in found.seconds) == pytest.approx(longer)
    assert not set(found.a.said) & set(found.b.said)


def test_a_job_does_not_differ_from_itself() -> None:
    found = diff({"a": A, "b": A})
    assert (found.settings, found.memory, found.seconds, found.a.said, found.b.said) == ([], [], [], [], [])


def test_the_reader_of_a_file_says_what_it_filled_in() -> None:
    found = diff({"a": CASES[3][0], "b": CASES[3][1]}, on="rtx-4090")
    assert any("gradient_checkpointing = true" in one for one in found.a.said)


def test_the_doors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, job in (("a", A), ("b", B)):
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(job), encoding="utf-8")
    words = [str(path) for path in paths]
    assert main(["diff", *words, "--on", "h100", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == TestClient(app).post("/v1/diff?on=h100", json={"a": A, "b": B}).json()
    assert said == diff_files(paths[0], paths[1], on="h100").model_dump(mode="json")
    assert main(["diff", *words]) == 0
    assert "training.sequence_length" in capsys.readouterr().out
    assert main(["diff", words[0], words[0], "--check"]) == 0
    assert "no setting differs" in capsys.readouterr().out
    assert main(["diff", *words, "--check"]) == 1


@pytest.mark.parametrize("body", [{}, {"a": A}, {"a": A, "b": 3}, {"a": A, "b": "nothing"}, {"a": A, "b": B, "c": A}, []])
def test_what_is_refused(body: Any) -> None:
    with pytest.raises(InvalidJob):
        diff(body)
