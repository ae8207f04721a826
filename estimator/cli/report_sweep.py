"""A sweep as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.planner.swept import Swept
from estimator.planner.what_if_answer import shown

MOST = 64
"""Rows that are shown; CSV and JSON have all."""
FITS = {True: "fits", False: "does not fit", None: "unknown"}


def sweep_text(found: Swept) -> str:
    """How many combinations fit, and the first of them with what they take."""
    counts = {said: found.fits.count(value) for value, said in FITS.items()}
    said = f"{found.points:,} combinations: {', '.join(f'{count:,} {name}' for name, count in counts.items() if count)}"
    lines = [said, "", *aligned([(*found.fields, "peak", "at least", "in all", ""), *islice(_rows(found), MOST)])]
    if found.points > MOST:
        lines.append(f"and {found.points - MOST:,} more: --csv has all")
    if found.refusals:
        lines += ["", "Refused", *(f"  {count:,}: {why}" for why, count in found.refusals.items())]
    return "\n".join([*lines, "", "Assumptions", *(f"  {one}" for one in found.assumptions)]) + "\n"


def _rows(found: Swept) -> Iterator[tuple[str, ...]]:
    for row in found.rows():
        fields, (peak, _, least, total, fits, how) = row[: len(found.fields)], row[len(found.fields) :]
        values = [f"{value:,}" if type(value) is int else shown(value) or "null" for value in fields]
        yield (*values, *("-" if size is None else gib(size) for size in (peak, least, total)), _verdict(fits, how))


def _verdict(fits: bool | None, how: str) -> str:
    return "refused" if how == "refused" else FITS[fits]
