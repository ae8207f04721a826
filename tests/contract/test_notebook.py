"""Answers in notebooks: every kind has HTML and Markdown, which say what its JSON says and are safe to show."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import pytest

import estimator
from estimator.contract.answer import WholeAnswer
from estimator.contract.units import gib
from tests.jobs import TINY

JOB = {"model": TINY, "hardware": {"gpu": "a100-80gb"}, "training": {"sequence_length": 128, "tokens": "1M"}}
EVIL = "<script>alert(1)</script>|*x*"


ASKED: dict[str, Callable[[], WholeAnswer]] = {
    "estimate": lambda: estimator.estimate(JOB),
    "fit": lambda: estimator.fit("gpt2", "8GB"),
    "limit": lambda: estimator.limit(JOB, "training.micro_batch_size", "max", on="8GB"),
    "what_if": lambda: estimator.what_if(JOB, {"training.micro_batch_size": "1,2,4"}),
    "which": lambda: estimator.which("gpt2", "lora"),
    "timeline": lambda: estimator.timeline(JOB),
    "explain": lambda: estimator.explain(JOB, "max_memory_allocated: 1 GiB"),
    "fitting": lambda: estimator.fitting("8GB", search="gpt2"),
}


@cache
def answer_of(kind: str) -> WholeAnswer:
    return ASKED[kind]()


class Read(HTMLParser):
    """The tags of a page that are open, and all that were met."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.met: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.met.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", ASKED)
def test_every_kind_of_answer_is_shown(kind: str) -> None:
    answer = answer_of(kind)
    html, markdown = answer._repr_html_(), answer._repr_markdown_()
    page = Read()
    page.feed(html)
    assert not page.open
    assert page.met <= {"h3", "h4", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "details", "summary"}
    assert markdown.startswith("### ")
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert rows
    for line, after in pairwise(rows):
        if after.startswith("| ---"):
            assert line.count(" | ") == after.count(" | ")
    assert len(repr(answer)) < 2000
    assert "\n" not in repr(answer)


def test_bytes_and_the_verdict_are_those_of_the_answer() -> None:
    answer = estimator.estimate(JOB)
    assert answer._repr_markdown_().startswith(f"### {answer.verdict}: ")
    for size in (answer.memory.peak_bytes, answer.memory.total_bytes, *answer.memory.at_peak.values()):
        assert gib(size) in answer._repr_html_()
        assert gib(size) in answer._repr_markdown_()
    for sentence in answer.warnings + answer.suggestions:
        assert sentence.partition("_")[0] in answer._repr_markdown_()


def test_what_a_stranger_wrote_is_text() -> None:
    answer = estimator.estimate(JOB).model_copy(update={"reason": EVIL, "warnings": [EVIL]})
    for shown in (answer._repr_html_(), answer._repr_markdown_()):
        assert "<script" not in shown
        assert "alert(1)" in shown
    assert "|\\*x\\*" in answer._repr_markdown_()


def test_public_names_are_those_that_a_notebook_completes() -> None:
    assert {"estimate", "fit", "which", "Answer", "__version__"} <= set(dir(estimator))
    assert set(estimator.__all__) <= set(dir(estimator))
