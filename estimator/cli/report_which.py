"""Which hardware does it, as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned, offered
from estimator.contract.units import gib
from estimator.planner.which_answer import TooLittle, Which, WhichRow

_HEADER = ("hardware", "spread", "verdict", "per GPU", "headroom", "fewer need", "tokens/s", "per hour", "at", "hours", "run")
MANY = 12
"""Cards that are named before the rest is counted."""


def which_text(found: Which) -> str:
    """The smallest and the cheapest, why less does not do it, and the rows."""
    answer = "UNKNOWN" if found.possible is None else "YES" if found.possible else "NO"
    lines = [f"{answer}: {found.model}, {found.way}: {found.reason}"]
    if not found.complete:
        lines.append("interrupted: what follows is what was found until then")
    lines.append("")
    if found.smallest is not None:
        lines.append(f"smallest   {_said(found.smallest)}")
    if found.cheapest is not None:
        lines.append(f"cheapest   {_said(found.cheapest)}")
    if found.too_small is not None:
        lines.append(f"too small  {hardware(found.too_small)}: {found.too_small.reason}")
    if found.rows:
        timed = any(row.hours is not None for row in found.rows)
        lines += ["", *aligned([_HEADER if timed else _HEADER[:-2], *(_cells(row, timed) for row in found.rows)])]
        if found.found > len(found.rows):
            lines.append(f"and {found.found - len(found.rows)} more: --top says how many are listed")
    if found.unknown:
        lines += ["", "Not known", *(f"  {named(one.accelerators)}: {one.verdict}: {one.why}" for one in found.unknown)]
    lines += ["", "Taken for granted", *(f"  {said}" for said in found.assumptions)]
    return "\n".join(lines) + "\n"


def hardware(one: WhichRow | TooLittle) -> str:
    """How many of which card: 2 x rtx-4090, 2 nodes of 8 x h100."""
    nodes = f"{one.nodes} nodes of " if one.nodes > 1 else ""
    return f"{nodes}{one.gpus} x {one.accelerator}"


def _said(row: WhichRow) -> str:
    price = "no price known" if row.price_per_hour is None else f"{row.price_per_hour} {row.currency} an hour at {offered(row)}"
    run = "" if row.total is None else f"; the run {row.total} {row.currency} in {row.hours:,.1f} h"
    tight = " (tight)" if row.verdict == "tight" else ""
    return f"{hardware(row)}: {gib(row.total_bytes)} of {gib(row.capacity_bytes)} on each{tight}; {price}{run}"


def _cells(row: WhichRow, timed: bool) -> tuple[str, ...]:
    fewer = row.fewer
    if fewer is None or fewer.needed_bytes is None:
        less = "" if fewer is None else "too much"
    else:
        less = gib(fewer.needed_bytes) if fewer.needed_bytes > row.capacity_bytes else "beyond the limits"
    fast = "-" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
    cells = (hardware(row), row.spread, row.verdict, gib(row.total_bytes), gib(row.headroom_bytes), less, fast)
    price = "-" if row.price_per_hour is None else f"{row.price_per_hour} {row.currency}"
    hours = "-" if row.hours is None else f"{row.hours:,.1f}"
    run = "-" if row.total is None else f"{row.total} {row.currency}"
    return (*cells, price, offered(row), *((hours, run) if timed else ()))


def named(names: list[str]) -> str:
    """Cards, the first of them by name."""
    rest = len(names) - MANY
    return ", ".join(names) if rest < 2 else f"{', '.join(names[:MANY])} and {rest} more"
