"""The headline question's answer as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned, offered, spaced
from estimator.contract.units import gib
from estimator.planner.headline_answer import Fit, FitRow

_COLUMNS = ("way", "spread", "verdict", "per GPU", "peak in", "headroom", "context to", "tokens/s", "would fit with")
_SPEED = _COLUMNS.index("tokens/s")
_ANYWHERE = "any", "all"
"""Regions of an offer that is the same in each, or whose provider names none."""
_IN_RAM = {"per GPU": "in RAM"}


def headline_text(fit: Fit) -> str:
    """The table of the headline question, with its assumptions under it."""
    title = f"{fit.model} on {fit.hardware}: {_number(fit.parameters)} parameters"
    if fit.capacity_bytes is not None:
        room = gib(fit.capacity_bytes)
        title += f"; {room} of RAM" if fit.in_ram else f"; a process can allocate {room} per GPU"
    columns = tuple(_IN_RAM.get(name, name) if fit.in_ram else name for name in _COLUMNS)
    rows = [columns, *(_cells(row) for row in fit.rows)]
    if not fit.timed:
        rows = [(*row[:_SPEED], *row[_SPEED + 1 :]) for row in rows]
    lines = [title, "", *aligned(rows), ""]
    if (rent := fit.rent) is not None:
        region = "" if rent.region in _ANYWHERE else f", {rent.region}"
        where = f"{offered(rent)}, {rent.kind}{region}"
        lines += [f"Rented from {rent.price_per_hour} {rent.currency} an hour ({where}; price of {rent.price_as_of})", ""]
    if notes := [f"  - {row.way}: {row.note}" for row in fit.rows if row.note]:
        lines += ["Notes", *notes, ""]
    lines += ["Assumptions", *(f"  - {note}" for note in fit.assumptions)]
    return "\n".join(lines) + "\n"


def _number(count: int | None) -> str:
    return "an unknown number of" if count is None else f"{count:,}"


def _cells(row: FitRow) -> tuple[str, ...]:
    if row.total_bytes is None:
        return row.way, row.spread, row.verdict, "", "", "", "", "", row.problem
    headroom = "" if row.headroom_bytes is None else gib(row.headroom_bytes)
    longest = "" if row.longest_context is None else str(row.longest_context)
    known = row.way, row.spread, row.verdict, gib(row.total_bytes), spaced(row.peak_phase)
    speed = "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
    return (*known, headroom, longest, speed, row.would_fit_with)
