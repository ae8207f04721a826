"""Sentences as values, before an answer says of what kind they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Said(NamedTuple):
    """A sentence: its `slug`, by which a program knows it, its `text`, and the job's field that it is `about`, if it is one."""

    slug: str
    text: str
    about: str | None = None


def all_said(slug: str, texts: Iterable[str], about: str | None = None) -> Iterator[Said]:
    """Sentences that stand for the same thing."""
    return (Said(slug, text, about) for text in texts)
