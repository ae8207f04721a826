"""What the pages of the documents point to is there: links with their anchors, and files that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ROOT

DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "benchmarks" / "README.md"])


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)#?([^)\s]*)\)", path.read_text(encoding="utf-8")):
        page = path.parent / target if target else path
        assert page.exists(), target
        assert not anchor or anchor in _anchors(page), f"{target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_files_that_a_page_names_are_there(path: Path) -> None:
    text = re.sub(r"https?://\S+", "", path.read_text(encoding="utf-8"))
    for name in set(re.findall(r"(?<![\w/.-])(?:estimator|tests|api|docs|model_specs)/[\w./*-]*\w", text)):
        assert [*ROOT.glob(name)], name
    for name in set(re.findall(r"(?<![\w/.-])(?:techniques/)?\w+\.md\b", text)):
        assert any((folder / name).exists() for folder in (path.parent, ROOT / "docs", ROOT)), name
