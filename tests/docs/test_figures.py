"""Figures that the documents say of jobs are what the program answers: a table of them, and every job that a page shows."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml

from estimator import Job, estimate, inspect_model
from estimator.pipeline.judged import judged
from tests.jobs import ROOT, cases, merged
from tests.schemas import schema

UNITS = {"": 1, "MiB": 2**20, "GiB": 2**30, "GB": 10**9, "%": 0.01, "ms": 1e-3}
ROWS = [
    (table["page"], merged(table["base"], row.get("with", {})), row) for table in cases("figures") for row in table["figures"]
]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
SHOWN = [
    pytest.param(page.name, block, id=f"{page.name} {i}")
    for page in PAGES
    if page.name != "check.md"  # whose YAML is of those who run checks
    for i, block in enumerate(re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
]
OF_TENSORS = re.compile(r"memory\.(peak_bytes|peak_phase|resident_bytes|forward_end_bytes|phases|at_peak)\b")
"""Figures for which the caching allocator need not be simulated."""


@cache
def _answered(job: str) -> dict[str, Any]:
    return estimate(yaml.safe_load(job)).model_dump()


@cache
def _tensors(job: str) -> dict[str, Any]:
    """What an answer says of tensors alone, sooner: without what the caching allocator keeps beside them."""
    return {"memory": judged(yaml.safe_load(job), reserves=False).memory.model_dump()}


@cache
def _counted(model: str) -> dict[str, Any]:
    return inspect_model(model).model_dump()


@cache
def _text(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def _place(answer: dict[str, Any], path: str) -> Any:
    found: Any = answer
    for name in path.split("."):
        found = found[name]
    return found


def _is(found: float, says: str) -> bool:
    """Whether a number, rounded as it is written, is what is written."""
    written = re.fullmatch(r"([\d, ]*\d)(?:\.(\d+))? ?([MG]i?B|%|ms)?", says)
    assert written, says
    whole, decimals, unit = written[1], written[2] or "", written[3] or ("GiB" if written[2] else "")
    return f"{found / UNITS[unit]:.{len(decimals)}f}" == re.sub("[, ]", "", whole) + (f".{decimals}" if decimals else "")


@pytest.mark.parametrize(("page", "job", "row"), ROWS, ids=[f"{page} {row['says']}" for page, _, row in ROWS])
def test_a_figure_is_what_is_answered(page: str, job: dict[str, Any], row: dict[str, Any]) -> None:
    assert re.search(rf"(?<![\d.]){re.escape(row['says'])}(?!\d)", _text(page)), "the page does not say so"
    if row["is"].startswith("counts."):
        answer = _counted(job["model"])
    else:
        asked = _tensors if OF_TENSORS.match(row["is"]) and OF_TENSORS.match(row.get("less", row["is"])) else _answered
        answer = asked(yaml.safe_dump(job))
    found = _place(answer, row["is"])
    if "less" in row:
        found -= _place(answer, row["less"])
    assert found == row["says"] if isinstance(found, str) else _is(found, row["says"]), found


@pytest.mark.parametrize(("page", "block"), SHOWN)
def test_a_job_that_a_page_shows_is_answered(page: str, block: str) -> None:
    """A whole job is answered; a part of one is as its schema wants; what else is YAML is a price list or a model."""
    job = yaml.safe_load(block)
    if "model" not in job and job.keys() <= Job.model_fields.keys():
        schema("job").validate({"model": "gpt2", **job})
    elif page in ("prices.md", "models.md") and "model" not in job:
        assert job.keys() <= {"prices", "aliases", "architecture"}
    else:
        schema("job").validate(job)
        if page != "jobs.md":  # whose job has every field, some of which do not go together
            assert estimate(job).memory.peak_bytes > 0


def test_the_test_can_fail() -> None:
    assert _is(12_345_678_901, "12,345,678,901")
    assert _is(12_345_678_901, "11.5 GiB")
    assert _is(12_345_678_901, "12.35 GB")
    assert _is(12_345_678_901, "11.5")
    assert not _is(12_345_678_902, "12,345,678,901")
    assert not _is(12_345_678_901, "11.6 GiB")
