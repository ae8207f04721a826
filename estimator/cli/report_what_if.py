"""A what-if as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.planner.what_if_answer import WhatIf, WhatIfRow, shown

_HEADER = ("verdict", "per GPU", "headroom", "peak in", "step", "tokens/s", "")
LONGEST = 110
"""Letters of a reason that are shown; JSON and CSV have all."""


def what_if_text(found: WhatIf) -> str:
    """A row for each combination, with the reason of those that have no answer."""
    lines = aligned([(*found.fields, *_HEADER), *(_cells(found, row) for row in found.rows)])
    if not found.complete:
        lines.append(f"interrupted after {len(found.rows)} of {found.asked} combinations")
    if found.assumptions:
        lines += ["", "Assumptions", *(f"  {said}" for said in found.assumptions)]
    return "\n".join(lines) + "\n"


def _cells(found: WhatIf, row: WhatIfRow) -> tuple[str, ...]:
    values = [f"{value:,}" if _whole(value) else shown(value) or "null" for value in (row.values[name] for name in found.fields)]
    if row.total_bytes is None:
        reason = row.reason if len(row.reason) <= LONGEST else f"{row.reason[: LONGEST - 1]}…"
        return (*values, row.verdict, "-", "-", "-", "-", "-", reason)
    headroom = "-" if row.headroom_bytes is None else gib(row.headroom_bytes)
    step = "-" if row.step_seconds is None else f"{row.step_seconds:.3g} s"
    speed = "-" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
    return (*values, row.verdict, gib(row.total_bytes), headroom, row.peak_phase.replace("_", " "), step, speed, "")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
