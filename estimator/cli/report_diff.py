"""What differs between two jobs as text for a terminal."""

from __future__ import annotations

from typing import Any

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.planner.answers import Differences, Side


def differences_text(found: Differences) -> str:
    """The two answers, then settings, memory and seconds that differ."""
    a, b = found.a, found.b
    lines = aligned([("", "a", "b"), *_both(a, b)])
    if found.settings:
        rows = [(one.field, _shown(one.a), _shown(one.b), _why(one.why_a, one.why_b)) for one in found.settings]
        lines += ["", *aligned([("setting", "a", "b", "default"), *rows])]
    else:
        lines += ["", "no setting differs"]
    if found.memory:
        rows = [
            (one.name.replace("_", " "), gib(one.a_bytes), gib(one.b_bytes), _more(one.b_bytes - one.a_bytes))
            for one in found.memory
        ]
        lines += ["", *aligned([("memory at the peak", "a", "b", "b - a"), *rows])]
    if found.seconds:
        rows = [
            (one.name, f"{one.a_seconds:.3g} s", f"{one.b_seconds:.3g} s", f"{one.b_seconds - one.a_seconds:+.2g} s")
            for one in found.seconds
        ]
        lines += ["", *aligned([("time of a step", "a", "b", "b - a"), *rows])]
    for name, side in (("a", a), ("b", b)):
        if side.said:
            lines += ["", f"said of {name} alone", *(f"  {one}" for one in side.said)]
    return "\n".join(lines) + "\n"


def _both(a: Side, b: Side) -> list[tuple[str, ...]]:
    sides = (a, b)
    speeds = ["not known" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}" for one in sides]
    return [
        ("read as", *(f"{one.framework} {one.version}".rstrip() for one in sides)),
        ("verdict", *(one.verdict for one in sides)),
        ("needed", *(gib(one.total_bytes) for one in sides)),
        ("peak of tensors", *(f"{gib(one.peak_bytes)} ({one.peak_phase.replace('_', ' ')})" for one in sides)),
        ("tokens per second", *speeds),
    ]


def _shown(value: Any) -> str:
    text = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _why(a: str, b: str) -> str:
    return "; ".join(f"{name}: {why}" for name, why in (("a", a), ("b", b)) if why)


def _more(difference: int) -> str:
    return f"{'-' if difference < 0 else '+'}{gib(abs(difference))}"
