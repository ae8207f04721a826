"""An explanation as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.measured.answers import Explanation, Hypothesis, MeasuredRow
from estimator.measured.record import QUANTITIES

_ROWS = ("", "measured", "predicted", "difference")
_REASONS = ("removes", "left", "would be explained by")
_SIZES = ("alive at the peak, of", "measured", "predicted")


def explanation_text(found: Explanation) -> str:
    """The verdict, measured beside predicted, the reasons that would explain the difference, and what avoids it."""
    lines = [f"{found.verdict.upper()}: {found.text}", ""]
    if found.rows:
        lines += [*aligned([_ROWS, *(_row(row) for row in found.rows)]), ""]
    if found.sizes:
        rows = [(gib(one.bytes), str(one.measured), str(one.predicted)) for one in found.sizes]
        lines += [*aligned([_SIZES, *rows]), ""]
    if found.hypotheses:
        lines += [*aligned([_REASONS, *(_reason(one) for one in found.hypotheses)]), ""]
    if found.changes:
        lines += ["What would avoid it", *(f"  - {one}" for one in found.changes), ""]
    lines.append(f"read as: {found.kind}")
    return "\n".join(lines) + "\n"


def _row(row: MeasuredRow) -> tuple[str, ...]:
    if row.quantity == "cache_tokens":
        predicted = "-" if row.predicted is None else f"{row.predicted:,}"
        difference = "-" if row.predicted is None else f"{row.measured - row.predicted:+,}"
        return "tokens of the cache", f"{row.measured:,}", predicted, difference
    name = QUANTITIES[row.quantity]
    if row.predicted is None:
        return name, gib(row.measured), "-", "-"
    apart = row.measured - row.predicted
    return name, gib(row.measured), gib(row.predicted), f"{'+' if apart >= 0 else '-'}{gib(abs(apart))}"


def _reason(one: Hypothesis) -> tuple[str, str, str]:
    if not one.change and one.predicted_bytes is None:
        return "-", "-", one.text
    named = f" ({one.culprit.name})" if one.culprit else ""
    return f"{one.removed:.0%}", gib(abs(one.difference_bytes)), f"{one.text}{named}"
