"""Pieces of which the tables of a terminal are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Rented(Protocol):
    """What names an offer: how many instances of a provider; none where no price is known."""

    @property
    def provider(self) -> str | None: ...

    @property
    def instance(self) -> str | None: ...

    @property
    def instances(self) -> int | None: ...


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns as wide as their widest."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def spaced(name: str) -> str:
    """A name of the answer as words."""
    return name.replace("_", " ")


def offered(row: Rented) -> str:
    """2 x aws p4d.24xlarge; empty where no price is known."""
    times = f"{row.instances} x " if (row.instances or 0) > 1 else ""
    return "" if row.provider is None else f"{times}{row.provider} {row.instance}"
