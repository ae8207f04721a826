"""The commands and requests that the documents show are real: each is run, and does what the page says."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Match

from api.app import app
from api.routes import ROUTERS
from estimator.cli.commands import COMMANDS
from estimator.cli.main import main
from estimator.contract.errors import WillItFitError
from tests.documents import ANSWERED
from tests.jobs import ROOT
from tests.shell import BLOCK, Command, request, shown_commands

pytestmark = pytest.mark.slow

client = TestClient(app, raise_server_exceptions=False)
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "tests" / "benchmarks" / "README.md",
    ROOT / "skills" / "willitfit" / "SKILL.md",
]
SHOWN = [command for page in PAGES for command in shown_commands(page)]
NOT_RUN = {
    "python3 -m venv": "makes an environment; the gate runs it",
    ".venv/bin/pip install": "needs the network; the gate runs it",
    ".venv/bin/willitfit llama-2-13b": "the gate runs it, from an environment of its own",
    ".venv/bin/pytest -n auto": "is this very run",
    ".venv/bin/ruff": "the gate runs it",
    ".venv/bin/mypy": "the gate runs it",
    "willitfit serve": "does not end; requests are sent to the service itself below",
    "willitfit bundle": "needs the network and Node; tests/api/test_bundle.py makes one where they are",
    "python -m http.server": "does not end",
    "willitfit mcp": "does not end; the SDK's client asks it in tests/api/test_agents.py",
    "willitfit wrap sbatch": "submits a job; tests/exchange/test_gate.py runs it with a program in sbatch's place",
    "willitfit wrap --on 8xH100 sbatch": "likewise",
    "willitfit prices refresh": "needs the network",
    "willitfit models add": "writes into the user's own folder; tests/simulation/test_counting.py runs it",
    "willitfit ours": "is of a model that was added",
}
"""How commands begin that are not run here, and why."""
JOB = {"model": "llama-3-8b", "hardware": {"gpu": "h100", "gpus": 8}, "training": {"tokens": "100M"}}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in ERRORS.split("\n## ")[1:]}


def _runs_here(command: Command) -> bool:
    return not any(" ".join(command.words).startswith(start) for start in NOT_RUN)


def _of(*programs: str) -> list[Command]:
    return [command for command in SHOWN if command.words[0] in programs and _runs_here(command)]


SCRIPT = "from trl import SFTConfig, SFTTrainer\nSFTTrainer('gpt2', args=SFTConfig(max_length=256)).train()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}', encoding="utf-8")
    (tmp_path / "train.yaml").write_text(
        "base_model: llama-3-8b\nadapter: lora\nsequence_len: 512\nbf16: true\n", encoding="utf-8"
    )
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    cells = [{"cell_type": "code", "source": SCRIPT}]
    (tmp_path / "notebook.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _exit_code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as left:
        return int(left.code or 0)


def test_commands_are_found_and_each_is_of_a_known_kind() -> None:
    assert len(SHOWN) > 40
    unknown = [
        str(c) for c in SHOWN if _runs_here(c) and c.words[0] not in ("willitfit", "curl", ".venv/bin/pytest", ".venv/bin/python")
    ]
    assert not unknown
    for start in NOT_RUN:
        assert start == "willitfit prices refresh" or any(" ".join(c.words).startswith(start) for c in SHOWN), start


def test_no_command_hides_in_an_indented_block() -> None:
    for page in PAGES:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        assert not re.findall(r"^ {4,}(?:\$ |\.venv/bin/|willitfit [a-z]|python -m |curl ).*$", text, re.MULTILINE), page.name


REMADE = {"README.md", *(f"{name}.md" for name in ANSWERED)}
"""Pages whose commands with output are run by tests/docs/test_documents.py, which compares the output."""


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "command", [c for c in _of("willitfit") if c.place != "errors.md" and not (c.shown and c.place in REMADE)], ids=str
)
def test_a_command_is_answered(command: Command, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(command.words[1:]) == (1 if "does not fit" in command.shown and command.words[1] == "check" else 0)
    printed = capsys.readouterr()
    assert printed.out
    assert not [line for line in printed.err.splitlines() if line.startswith("willitfit: ")]


@pytest.mark.parametrize("command", [c for c in _of("willitfit") if c.place == "errors.md"], ids=str)
def test_an_error_is_what_its_page_quotes(
    command: Command, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(command.stdin.encode())))
    code = _exit_code(command.words[1:])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", command.shown)
    (slug,) = re.findall(r"\[([\w-]+)\]$", command.shown)
    assert f"Exit code {code}," in SECTIONS[slug]
    assert command.shown in SECTIONS[slug]


@pytest.mark.parametrize("command", _of("curl"), ids=str)
def test_a_request_is_answered(command: Command) -> None:
    method, address, body = request(command)
    answer = client.request(method, address, content=body)
    if not command.shown:
        assert answer.status_code == 200, answer.text
        return
    problem = json.loads(command.shown)
    assert answer.text == command.shown.strip()
    assert answer.status_code == problem["status"]
    slug = problem["type"].partition("#")[2] or "Without a slug"
    assert command.shown in SECTIONS[slug]
    assert slug == "Without a slug" or f"HTTP {answer.status_code}" in SECTIONS[slug]


def test_a_mistake_of_ours_is_what_its_page_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("api.answers.accelerator", mistaken)
    answer = client.get("/v1/gpus/h100")
    assert answer.status_code == 500
    assert f"```json\n{answer.text}\n```" in SECTIONS["internal-error"]


def test_every_message_that_the_errors_page_quotes_is_tested() -> None:
    """All that looks like a message stands below the command that provokes it."""
    quoted = re.findall(r"^ *(?:willitfit: |\{\"type\").*$", ERRORS, re.MULTILINE)
    tested = {line for c in SHOWN if c.place == "errors.md" for line in c.shown.splitlines()}
    assert len(quoted) > 10
    assert [line for line in quoted if line not in tested and "internal-error" not in line and "cannot be used" not in line] == []
    elsewhere = {"unsupported-interpreter"}  # which another interpreter says: tests/tape/test_lifetimes.py
    for kind in (kind for kind in WillItFitError.__subclasses__() if kind.slug not in elsewhere):
        assert [line for line in tested if line.endswith(f"[{kind.slug}]")], kind.slug


@pytest.mark.parametrize("command", _of(".venv/bin/python"), ids=str)
def test_a_module_that_is_run_is_there(command: Command) -> None:
    assert command.words[1] == "-m"
    assert importlib.util.find_spec(command.words[2])


@pytest.mark.parametrize("command", _of(".venv/bin/pytest"), ids=str)
def test_pytest_takes_the_arguments(command: Command) -> None:
    """`--markers` is answered when all options have been read, and before any test is."""
    words = command.words[1:]
    found = subprocess.run([sys.executable, "-m", "pytest", *words, "--markers"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert all((ROOT / word.partition("::")[0]).exists() for word in words if word.startswith("tests"))


INLINE = [(page.name, code) for page in PAGES for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))]


def test_commands_within_sentences_name_commands_and_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [(place, code.split()) for place, code in INLINE if re.match(r"willitfit [a-z]", code)]
    assert len(asked) > 10
    for place, (_, command, *words) in asked:
        known = command in COMMANDS
        assert known or "--on" in words, (place, command)
        assert _exit_code([command, "--help"] if known else ["--help"]) == 0
        help = capsys.readouterr().out
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert f"{option} " in help or f"{option}]" in help, (place, command, option)


def test_modules_and_extras_within_sentences_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    modules = [(place, code) for place, code in INLINE if code.startswith("python -m ") and not re.search("sglang|verl", code)]
    assert len(modules) > 5
    for place, code in modules:
        assert importlib.util.find_spec(code.split()[2]), (place, code)
    for place, code in INLINE:
        for named in re.findall(r"pip install '(?:willitfit|\.)\[(\w+)\]'", code):
            assert named in extras, (place, code)


ROUTES = re.findall(r"^\| `(GET|POST) ([^`]+)` \|", (ROOT / "docs" / "rest.md").read_text(encoding="utf-8"), re.MULTILINE)
SERVED: list[APIRoute] = [route for router in ROUTERS for route in router.routes]  # type: ignore[misc]
OWN = {"/openapi.json", "/docs"}
"""Routes of the description, which the page names in its first sentence."""


def test_the_page_of_rest_has_every_route_and_no_other() -> None:
    met = set()
    for method, address in ROUTES:
        scope = {"type": "http", "method": method, "path": address.partition("?")[0], "headers": []}
        matching = [route for route in SERVED if route.matches(scope)[0] == Match.FULL]
        assert matching, f"{method} {address}"
        met.add((method, matching[0].path))
    assert len(met) == len(ROUTES)
    there = {(method, route.path) for route in SERVED for method in route.methods or () if method != "HEAD"}
    assert met == {(method, path) for method, path in there if path not in OWN}
    assert there >= {("GET", path) for path in OWN}


@pytest.mark.parametrize(("method", "address"), ROUTES)
def test_an_address_of_the_page_of_rest_is_answered(method: str, address: str) -> None:
    bodies = {
        "/v1/import?from=accelerate": "distributed_type: MULTI_GPU\nnum_processes: 8\n",
        "/v1/replicas?requests=10": json.dumps({"model": "gpt2", "task": "serve"}),
        "/v1/explain": json.dumps({"job": JOB, "measured": "max_memory_allocated: 1 GiB"}),
        "/v1/bottleneck": json.dumps({"job": JOB, "profile": "data_time: 0.2 time: 0.5"}),
        "/v1/calibrate": (ROOT / "docs" / "examples" / "runs.jsonl").read_text(encoding="utf-8"),
        "/v1/admission": json.dumps({"request": {"uid": "1", "object": {}}}),
        "/v1/check?on=rtx-4090&format=markdown": json.dumps({"files": {"job.json": json.dumps(JOB)}}),
        "/v1/diff?on=rtx-4090": json.dumps({"a": JOB, "b": JOB}),
    }
    body = bodies.get(address, json.dumps(JOB)) if method == "POST" else None
    answer = client.request(method, address, content=body)
    assert answer.status_code == 200, answer.text
