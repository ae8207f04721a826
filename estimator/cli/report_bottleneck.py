"""What a step is bound by, as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.measured.bottleneck_answer import Bound, Profiled

_BOUNDS = ("", "measured", "predicted")
_REMEDIES = ("a token's time", "for", "would be")


def bottleneck_text(found: Profiled) -> str:
    """The bound, each share measured beside predicted, what else the profile says, and what helps."""
    lines = [f"{(found.bound or 'not told').upper()}: {found.text}", ""]
    lines += [*aligned([_BOUNDS, *(_row(one) for one in found.bounds)]), ""]
    if found.measured_seconds is not None:
        ours = f", {found.predicted_seconds:.3g} s predicted" if found.predicted_seconds else ""
        lines += [f"a step takes {found.measured_seconds:.3g} s{ours}", ""]
    if found.remedies:
        rows = [(f"-{one.gain:.0%}{' at most' if one.at_most else ''}", one.bound, one.text) for one in found.remedies]
        lines += ["What would make it faster", *aligned([_REMEDIES, *rows]), ""]
    lines.append(f"read as: {found.kind}")
    return "\n".join(lines) + "\n"


def _row(one: Bound) -> tuple[str, ...]:
    return one.text, *("-" if share is None else f"{share:.0%}" for share in (one.measured, one.predicted))
