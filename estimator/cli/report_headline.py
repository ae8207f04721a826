"""The headline question's answer as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.contract.units import gib
from estimator.planner.headline_answer import Fit, FitRow

_COLUMNS = ("way", "spread", "verdict", "per GPU", "peak in", "headroom", "context to", "would fit with")
_IN_RAM = {"per GPU": "in RAM"}


def headline_text(fit: Fit) -> str:
    """The table of the headline question, with its assumptions under it."""
    title = f"{fit.model} on {fit.hardware}: {_number(fit.parameters)} parameters"
    if fit.capacity_bytes is not None:
        room = gib(fit.capacity_bytes)
        title += f"; {room} of RAM" if fit.in_ram else f"; a process can allocate {room} per GPU"
    columns = tuple(_IN_RAM.get(name, name) if fit.in_ram else name for name in _COLUMNS)
    lines = [title, "", *aligned([columns, *(_cells(row) for row in fit.rows)]), ""]
    if notes := [f"  - {row.way}: {row.note}" for row in fit.rows if row.note]:
        lines += ["Notes", *notes, ""]
    lines += ["Assumptions", *(f"  - {note}" for note in fit.assumptions)]
    return "\n".join(lines) + "\n"


def _number(count: int | None) -> str:
    return "an unknown number of" if count is None else f"{count:,}"


def _cells(row: FitRow) -> tuple[str, ...]:
    if row.total_bytes is None:
        return row.way, row.spread, row.verdict, "", "", "", "", row.problem
    headroom = "" if row.headroom_bytes is None else gib(row.headroom_bytes)
    longest = "" if row.longest_context is None else str(row.longest_context)
    known = row.way, row.spread, row.verdict, gib(row.total_bytes), spaced(row.peak_phase)
    return (*known, headroom, longest, row.would_fit_with)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns as wide as their widest."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def spaced(name: str) -> str:
    return name.replace("_", " ")
