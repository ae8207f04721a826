"""One contract, one result: Python, the command line and REST give the same bytes, and refuse in the same words."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import app
from api.limits import LIMIT
from estimator import Answer, Job, WillItFitError, estimate, fit
from estimator.cli.main import main
from tests.jobs import cases

pytestmark = pytest.mark.slow

client = TestClient(app, raise_server_exceptions=False)
JOBS: list[dict[str, Any]] = [
    {"model": "llama-2-13b"},
    {"model": "gpt2", "hardware": {"gpu": "rtx-4090"}, "training": {"precision": "32-true", "tokens": "1B"}},
    {
        "model": "qwen3-8b",
        "task": "serve",
        "hardware": {"gpu": "h100"},
        "serving": {"context": 32768, "concurrency": 8, "hours": 1.5},
    },
    {"model": "13B", "hardware": {"memory": "24GB", "gpus": 2}, "training": {"adapter": {"rank": 64}, "quantization": "nf4"}},
    {
        "model": "llama-3.1-70b",
        "hardware": {"gpu": "h100", "gpus": 8, "nodes": 4},
        "training": {"activation_checkpointing": {"every": 2}},
    },
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["model"])
def test_every_door_gives_the_same_bytes(job: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = estimate(job).to_json()
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    assert main(["estimate", str(path), "--json"]) == 0
    assert capsys.readouterr().out == expected
    assert client.post("/v1/estimate", json=job).text == expected
    assert estimate(Job.model_validate(job)).to_json() == expected
    assert estimate(path).to_json() == expected


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["model"])
def test_the_job_in_an_answer_asks_for_that_answer(job: dict[str, Any]) -> None:
    """The same numbers; only the list of defaults that were used is gone."""
    first = estimate(job)
    again = estimate(first.job)
    assert again.model_dump(exclude={"assumptions", "notes"}) == first.model_dump(exclude={"assumptions", "notes"})
    assert not any(said.startswith("default") for said in again.assumptions)


def test_a_job_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"model: gpt2\n")))
    assert main(["estimate", "-", "--json"]) == 0
    assert capsys.readouterr().out == estimate({"model": "gpt2"}).to_json()


@pytest.mark.parametrize(("model", "on"), [("llama-2-13b", "2x24GB"), ("gpt2", "t4"), ("7B", "2 nodes of 8xA100-80GB")])
def test_every_door_answers_the_headline_question(model: str, on: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = fit(model, on).to_json()
    assert main([model, "--on", on, "--json"]) == 0
    assert capsys.readouterr().out == expected
    assert client.get("/v1/fit", params={"model": model, "on": on}).text == expected


def test_each_row_brings_the_job_that_it_answers() -> None:
    for row in fit("llama-2-13b", "2x24GB").rows:
        assert row.job is not None
        memory = estimate(row.job).memory
        assert (memory.total_bytes, memory.peak_phase) == (row.total_bytes, row.peak_phase)


def test_an_answer_is_read_back() -> None:
    answer = estimate(JOBS[1])
    assert Answer.model_validate_json(answer.to_json()) == answer


@pytest.mark.parametrize("case", cases("refused"), ids=lambda case: case["name"])
def test_a_bad_job_is_refused_everywhere(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(case["yaml"] if "yaml" in case else yaml.safe_dump(case["job"]), encoding="utf-8")
    assert main(["estimate", str(path)]) == case["exit"]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert case["says"] in printed.err
    assert "Traceback" not in printed.err
    if "job" not in case:
        return
    with pytest.raises(WillItFitError, match=r"\w") as refused:
        estimate(case["job"])
    assert case["says"] in str(refused.value)
    answer = client.post("/v1/estimate", json=case["job"])
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.status_code == problem["status"] == refused.value.status
    assert case["says"] in problem["detail"]
    assert problem["type"] == f"/problems#{refused.value.slug}"


COMMANDS: list[tuple[list[str], int, str]] = [
    (["llama-2-31b", "--on", "2x24GB"], 3, "llama-2-13b"),
    (["llama-2-13b", "--on", "rtx-4900"], 3, "rtx-4090"),
    (["llama-2-13b", "--on", ""], 2, "2x24GB"),
    (["llama-2-13b", "--on", "0x24GB"], 2, "0 GPUs"),
    (["llama-2-13b", "--on", "0GB"], 2, "write 1GB to 16TB"),
    (["llama-2-13b", "--on", "9999999x24GB"], 2, "between 1 and"),
    (["-7B", "--on", "24GB"], 2, "usage"),
    (["0B", "--on", "24GB"], 2, "0.02B to 2000B"),
    (["1x7B", "--on", "24GB"], 2, "1 experts"),
    (["", "--on", "24GB"], 2, "name a model"),
    (["llama-2-13b"], 2, "--on"),
    (["estimate"], 2, "are required: JOB"),
    (["estimate", "missing.yaml"], 2, "missing.yaml"),
    (["estimate", "."], 2, "cannot be read"),
    (["missing/config.json", "--on", "24GB"], 2, "no such file"),
    (["serve", "--port", "many"], 2, "'many' is no port"),
    (["serve", "--port", "99999"], 2, "from 1 to 65535"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), COMMANDS, ids=lambda value: str(value)[:40])
def test_a_bad_command_is_refused(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main(arguments)
    except SystemExit as left:
        found = int(left.code or 0)
    printed = capsys.readouterr()
    assert (found, printed.out) == (code, "")
    assert says in printed.err
    assert "Traceback" not in printed.err


def test_an_unreadable_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"model: \xff\xfe\x00")
    assert main(["estimate", str(path)]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_check_turns_the_verdict_into_an_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for gpu, code in (("h200", 0), ("t4", 1)):
        path.write_text(f"model: llama-3-8b\nhardware: {{gpu: {gpu}}}\ntask: serve\n", encoding="utf-8")
        assert main(["estimate", str(path), "--check"]) == code
        assert main(["estimate", str(path)]) == 0
    assert main(["llama-3.1-405b", "--on", "t4", "--check"]) == 1


BODIES: list[tuple[bytes, int, str]] = [
    (b"", 422, "is empty"),
    (b"   ", 422, "is empty"),
    (b"model: gpt2", 422, "not JSON"),
    (b"[1]", 422, "no JSON object"),
    (b"{" * 1000, 422, "not JSON"),
    (b"[" * 100_000, 422, "more than 50,000 values"),
    (b'{"model": "' + b"x" * 10_000_000 + b'"}', 413, str(LIMIT)),
    (b'{"model": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}", 422, "nested too deeply"),
    (b'{"model": "/etc/passwd.json"}', 422, "files cannot be named here"),
    (b'{"model": "../../etc"}', 404, "no model is called"),
    (b'{"model": "gpt2", "training": {"tokens": NaN}}', 422, "tokens"),
]


@pytest.mark.parametrize(("body", "status", "says"), BODIES, ids=lambda value: str(value)[:30])
def test_a_bad_body_is_a_problem_document(body: bytes, status: int, says: str) -> None:
    answer = client.post("/v1/estimate", content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert says in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/fit", 422), ("/v1/nothing", 404), ("/v1/fit?model=gpt2", 422), ("/v1/fit?model=gtp2&on=t4", 404)]
)
def test_a_bad_address_is_a_problem_document(path: str, status: int) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = json.loads(answer.text)
    assert problem["detail"]
    assert problem["type"] == "about:blank" or client.get(problem["type"]).status_code == 200
