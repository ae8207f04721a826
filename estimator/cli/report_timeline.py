"""A timeline as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.timelines.answers import Timeline

_PHASES = ("phase", "events", "at its start", "peak", "at its end")
_LARGEST = 12
"""Tensors alive at the peak that are named."""


def timeline_text(found: Timeline) -> str:
    """The phases with their highest, what is alive at the peak, and the largest tensors of those that are listed."""
    peak = found.peak
    phase = peak.phase.replace("_", " ")
    lines = [f"{gib(peak.bytes)} at the peak ({peak.bytes:,} bytes): {phase}, {peak.where}", ""]
    rows = [
        (
            one.name.replace("_", " "),
            f"{one.start:,} to {one.stop:,}",
            gib(one.start_bytes),
            gib(one.peak_bytes),
            gib(one.end_bytes),
        )
        for one in found.phases
    ]
    lines += [*aligned([_PHASES, *rows]), "", "Alive at the peak"]
    largest = sorted(peak.components.items(), key=lambda part: -part[1])
    lines += [f"  {line}" for line in aligned([(name.replace("_", " "), gib(size)) for name, size in largest])]
    alive = [one for one in found.tensors if one.born <= peak.event and (one.died is None or one.died > peak.event)]
    if alive:
        shown = [(one.name, gib(one.bytes), one.component.replace("_", " ")) for one in alive[:_LARGEST]]
        lines += ["", "The largest tensors among it", *(f"  {line}" for line in aligned(shown))]
    return "\n".join(lines) + "\n"
