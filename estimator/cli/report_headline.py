"""The headline question's answer as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned, offered, spaced
from estimator.contract.units import gib
from estimator.planner.headline_answer import Fit, FitRow, HourlyPrice

_COLUMNS = (
    "way",
    "spread",
    "verdict",
    "per GPU",
    "peak in",
    "headroom",
    "context to",
    "tokens/s",
    "hours",
    "run",
    "would fit with",
)
_OPTIONAL = "tokens/s", "hours", "run"
"""Columns that are left out where nothing is in them."""
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
    rows = [_cells(row, fit.rent) for row in fit.rows]
    shown = [at for at, name in enumerate(columns) if name not in _OPTIONAL or any(row[at] for row in rows)]
    lines = [title, "", *aligned([[row[at] for at in shown] for row in (columns, *rows)]), ""]
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


def _cells(row: FitRow, rent: HourlyPrice | None) -> tuple[str, ...]:
    if row.total_bytes is None:
        return row.way, row.spread, row.verdict, *[""] * (len(_COLUMNS) - 4), row.problem
    headroom = "" if row.headroom_bytes is None else gib(row.headroom_bytes)
    longest = "" if row.longest_context is None else str(row.longest_context)
    known = row.way, row.spread, row.verdict, gib(row.total_bytes), spaced(row.peak_phase)
    speed = "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
    hours = "" if row.hours is None else f"{row.hours:,.1f}"
    run = "" if row.total is None or rent is None else f"{row.total} {rent.currency}"
    return (*known, headroom, longest, speed, hours, run, row.would_fit_with)
