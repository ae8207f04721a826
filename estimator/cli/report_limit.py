"""A limit as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.planner.answers import Limit, TriedValue

_HEADER = ("value", "verdict", "needed", "peak of tensors")


def limit_text(found: Limit) -> str:
    """The value, what is needed with it and with the next one, and what is in the way."""
    value = "unknown" if found.fits is None else "none" if found.value is None else f"{found.value:,}"
    lines = [f"{found.bound} {found.field}: {value}", "", found.reason, ""]
    tried = [one for one in (found.at, found.next) if one is not None]
    lines += [*aligned([_HEADER, *(_cells(one) for one in tried)]), "", f"{found.estimates} values estimated."]
    if found.assumptions:
        lines += ["", "Assumptions", *(f"  {said}" for said in found.assumptions)]
    return "\n".join(lines) + "\n"


def _cells(one: TriedValue) -> tuple[str, ...]:
    if one.total_bytes is None or one.peak_bytes is None:
        return f"{one.value:,}", one.verdict, "-", "-"
    return f"{one.value:,}", one.verdict, gib(one.total_bytes), gib(one.peak_bytes)
