"""Errors of rows that numbers were fitted to apart from those of rows held out, as the pages on accuracy show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Figures(NamedTuple):
    """How far off some rows are: sizes of relative errors."""

    rows: int
    median: float
    p90: float
    worst: float

    def cells(self, digits: int) -> list[str]:
        if not self.rows:
            return ["0", "", "", ""]
        return [f"{self.rows:,}", *(f"{value:.{digits}%}" for value in (self.median, self.p90, self.worst))]


def figures(errors: Iterable[float]) -> Figures:
    """Of relative errors with their sign."""
    sizes = np.abs(list(errors))
    if not len(sizes):
        return Figures(0, 0, 0, 0)
    return Figures(len(sizes), float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(sizes.max()))


def split(errors: Mapping[str, float], used: Sequence[str] = ()) -> tuple[Figures, Figures]:
    """Of the rows that something was fitted to, and of all others, by name."""
    return figures(errors[name] for name in used), figures(error for name, error in errors.items() if name not in used)


def split_table(rows: Iterable[tuple[str, tuple[Figures, Figures]]], digits: int = 1) -> str:
    """A table with both sides of each row."""
    header = ["", "rows used", "median", "90 %", "worst", "rows held out", "median", "90 %", "worst"]
    lines = [header, ["---"] * len(header)]
    lines += [[name, *used.cells(digits), *held.cells(digits)] for name, (used, held) in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
