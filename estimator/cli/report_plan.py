"""A plan as text for a terminal."""

from __future__ import annotations

from typing import Any

from estimator.cli.report_which import named
from estimator.cli.table import aligned, offered
from estimator.contract.units import gib
from estimator.planner.plan_answer import Plan, PlanRow

NEAR = 12
"""Neighbours of each of the best that are shown; JSON has all."""
LONGEST = 100
"""Letters of a reason that are shown; JSON has all."""
BEST = ("cheapest", "quickest", "roomiest")


def plan_text(found: Plan) -> str:
    """The best ways with why what is near them is worse, then all that none beats."""
    answer = "UNKNOWN" if found.possible is None else "YES" if found.possible else "NO"
    lines = [f"{answer}: {found.model}: {found.reason}"]
    if not found.complete:
        lines.append("ended before all was tried: what follows is what was found until then")
    best: dict[int, list[str]] = {}
    for name in BEST:
        if (at := getattr(found, name)) is not None:
            best.setdefault(at, []).append(name)
    for at, names in best.items():
        lines += ["", *_best(found, found.rows[at], ", ".join(names))]
    if len(found.rows) > len(best):
        lines += ["", *aligned([_header(found), *(_cells(found, row) for row in found.rows)])]
        if found.found > len(found.rows):
            lines.append(f"and {found.found - len(found.rows)} more: --top says how many are listed")
    if found.unknown:
        lines += ["", "Not known", *(f"  {named(one.accelerators)}: {one.why}" for one in found.unknown)]
    seen = found.looked
    said = f"{seen.candidates:,} candidates: {seen.without_simulation:,} left out by bounds, {seen.refused:,} refused, "
    said += f"{seen.simulated:,} simulated"
    if seen.settled < seen.candidates:
        said += f"; {seen.candidates - seen.settled:,} ({1 - seen.settled / seen.candidates:.1%}) were not looked at"
    lines += ["", "Taken for granted", *(f"  {one}" for one in found.assumptions), "", said]
    return "\n".join(lines) + "\n"


def _best(found: Plan, row: PlanRow, names: str) -> list[str]:
    """A way, what it changes of the job, and what is near it."""
    offer = "" if row.provider is None else f", {row.price_per_hour} {found.currency} an hour at {offered(row)}"
    lines = [f"{names}: {_hardware(row)}{offer}", f"  {_told(found, row)}"]
    lines += [f"  {name}: {_shown(value)}" for name, value in row.changes.items() if not name.startswith("hardware.")]
    near = sorted(row.neighbours, key=lambda one: (one.fits is None, one.fits is False))
    cells = [("   ", _changed(one.changes), _cut(one.reason)) for one in near if one.fits is not None][:NEAR]
    return [*lines, "  near it", *aligned(cells)] if cells else lines


def _told(found: Plan, row: PlanRow) -> str:
    time = "no time known" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f} tokens/s"
    hours = "" if row.hours is None else f", {row.hours:,.1f} h"
    money = ""
    if row.total is not None:
        money = f", {row.total} {found.currency}"
    elif row.million_tokens is not None:
        money = f", {row.million_tokens} {found.currency} a million tokens"
    return f"{time}{hours}{money}; {gib(row.total_bytes)} of {gib(row.offered_bytes)} on each GPU ({row.verdict})"


def _header(found: Plan) -> tuple[str, ...]:
    return ("hardware", "changes", "verdict", "left", "tokens/s", "hours", found.currency or "")


def _cells(found: Plan, row: PlanRow) -> tuple[str, ...]:
    changes = {name.split(".")[1]: value for name, value in row.changes.items() if not name.startswith("hardware.")}
    speed = "-" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
    hours = "-" if row.hours is None else f"{row.hours:,.1f}"
    money = row.total or row.million_tokens or "-"
    return (_hardware(row), _changed(changes) or "as it is", row.verdict, gib(row.headroom_bytes), speed, hours, money)


def _hardware(row: PlanRow) -> str:
    nodes = f"{row.nodes} nodes of " if row.nodes > 1 else ""
    return f"{nodes}{row.gpus} x {row.accelerator or 'the card'}"


def _changed(changes: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in changes.items())


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _cut(reason: str) -> str:
    return reason if len(reason) <= LONGEST else f"{reason[: LONGEST - 1]}…"
