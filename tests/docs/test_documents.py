"""Documents equal the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from estimator import WillItFitError, estimate
from estimator.cli.commands import COMMANDS
from tests.documents import ROOT, documents
from tests.jobs import cases, content
from tests.measured_runs import a100_runs
from tests.schemas import schema

QUICK = ("schema", "golden")
"""Folders of files that are made in no time; pages are made of all cases."""
MADE = [pytest.param(*one, marks=() if one[0].parent.name in QUICK else pytest.mark.slow, id=one[0].name) for one in documents()]


@pytest.mark.parametrize(("path", "text"), MADE)
def test_it_is_what_the_code_writes(path: Path, text: Callable[[], str]) -> None:
    assert path.read_text(encoding="utf-8") == text(), "run: python -m tests.documents"


def test_every_error_has_its_paragraph() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## ([\w-]+)$", text, re.MULTILINE))
    page = (ROOT / "api" / "templates" / "problems.html").read_text(encoding="utf-8")
    slugs = {kind.slug for kind in WillItFitError.__subclasses__()}
    assert sections == slugs | set(re.findall(r'<section id="([\w-]+)"', page))
    for kind in WillItFitError.__subclasses__():
        paragraph = text.partition(f"## {kind.slug}")[2].partition("##")[0]
        assert f"Exit code {kind.exit_code}, HTTP {kind.status}" in paragraph
        assert f"estimator.{kind.__name__}" in paragraph


def test_the_job_in_the_documents_names_fields_that_exist() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    job = yaml.safe_load(re.findall(r"^## A job\n.*?```yaml\n(.*?)```", text, re.DOTALL | re.MULTILINE)[0])
    schema("job").validate(job)
    job["training"].pop("quantization")
    schema("answer").validate(json.loads(estimate(job).to_json()))


@pytest.mark.parametrize("name", ["fine_tune_8b", "full", "megatron", "qlora", "serve", "serve_70b"])
def test_examples_are_answered(name: str) -> None:
    path = ROOT / "docs" / "examples" / f"{name}.yaml"
    schema("job").validate(content(path))
    assert estimate(path).fits is True


@pytest.mark.parametrize("case", [c for c in cases("refused") if "unknown key" in c["says"] or "negative" in c["name"]])
def test_the_schema_refuses_what_the_code_refuses(case: dict[str, Any]) -> None:
    assert not schema("job").is_valid(case["job"])


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"## `willitfit {command}`" in text


def test_every_judged_case_is_on_the_accuracy_page() -> None:
    text = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for judge in ("fake_steps", "real_steps"):
        for case in cases(judge):
            assert f"| {case['name']} |" in text
    for run in a100_runs():
        assert f"| {run['name']} |" in text


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL))
def test_python_in_the_readme_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})
