"""The models that fit on some hardware, as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.contract.rows import Fitting, FittingRow
from estimator.contract.units import gib

_HEADER = ("model", "released", "parameters", "used", "verdict", "per GPU", "headroom", "tokens", "context to", "tokens/s")
MANY = 8
"""Models that are named before the rest is counted."""
LONGEST = 100
"""Letters of a reason that are shown; JSON has all."""


def fitting_text(found: Fitting) -> str:
    """A row for each model, and what is said of those that are none."""
    size = "" if found.capacity_bytes is None else gib(found.capacity_bytes)
    each = f"; {size} of RAM" if found.in_ram else f"; a process can allocate {size} per GPU" if size else ""
    lines = [f"{found.task} on {found.hardware}{each}", ""]
    if found.rows:
        lines += [*aligned([_HEADER, *(_cells(row) for row in found.rows)]), ""]
    said = f"{len(found.rows)} of the {found.looked_at} newest of {found.known} models"
    lines.append(said if found.complete else f"{said}: interrupted")
    if found.too_large:
        lines.append(f"too large: {_named(found.too_large)}")
    if found.too_short:
        lines.append(f"made for fewer tokens: {_named(found.too_short)}")
    groups: dict[str, list[str]] = {}
    for one in found.unknown:
        why = one.why if len(one.why) <= LONGEST else f"{one.why[: LONGEST - 1]}…"
        groups.setdefault(f"{one.verdict}: {why}", []).extend(one.models)
    lines += [f"{_named(names)}: {why}" for why, names in groups.items()]
    return "\n".join(lines) + "\n"


def _cells(row: FittingRow) -> tuple[str, ...]:
    return (
        row.name,
        row.released or "-",
        f"{row.parameters / 1e9:.1f}B" if row.parameters >= 1e9 else f"{row.parameters / 1e6:.0f}M",
        row.way if row.spread == "1 GPU" else f"{row.way}, {row.spread}",
        row.verdict,
        gib(row.total_bytes),
        "-" if row.headroom_bytes is None else gib(row.headroom_bytes),
        f"{row.tokens:,}",
        "-" if row.longest_context is None else f"{row.longest_context:,}",
        "-" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
    )


def _named(names: list[str]) -> str:
    rest = len(names) - MANY
    return ", ".join(names) if rest < 2 else f"{', '.join(names[:MANY])} and {rest} more"
