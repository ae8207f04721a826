"""The figures of docs/techniques.md: what each technique saves and costs, and what folklore says of it, by our own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from estimator import Answer, estimate
from estimator.units import GIB
from tests.accuracy import table
from tests.jobs import table as cases_of

Part = Mapping[str, Any]


def merged(base: Part, *changes: Part) -> dict[str, Any]:
    """A job with its parts replaced, key by key."""
    made = dict(base)
    for change in changes:
        for name, value in change.items():
            both = isinstance(value, Mapping) and isinstance(made.get(name), Mapping) and name in PARTS
            made[name] = {**made[name], **value} if both else value
    return made


PARTS = ("hardware", "training", "parallelism", "offload", "serving", "host")


@cache
def _table() -> dict[str, Any]:
    return cases_of("techniques")


def answer(tokens: int, *changes: Part) -> Answer:
    """The answer to the base job with changes, at a sequence length."""
    return estimate(merged(_table()["base"], *changes, {"training": {"sequence_length": tokens}}))


def activations(found: Answer) -> int:
    """Bytes that forward leaves for backward: activations, logits and loss."""
    return found.memory.forward_end_bytes - found.memory.resident_bytes


def savings() -> str:
    """A row per technique: the peak before and after at each length, what is saved, and the arithmetic that it costs."""
    lengths, rows = _table()["lengths"], []
    for row in _table()["rows"]:
        cells = [row["name"] if "page" not in row else f"[{row['name']}](techniques/{row['page']})"]
        flops = 0.0
        for tokens in lengths:
            before, after = answer(tokens, row.get("from", {})), answer(tokens, row["to"])
            old, new = before.memory.peak_bytes, after.memory.peak_bytes
            cells.append(f"{old / GIB:.1f} → {new / GIB:.1f} ({new / old - 1:+.0%})")
            if tokens == lengths[0]:
                flops = _flops(after) / _flops(before) - 1
        rows.append([*cells, f"{flops:+.0%}" if abs(flops) >= 0.005 else "none"])
    return table(["technique", *(f"{n:,} tokens" for n in lengths), "arithmetic"], rows)


def _flops(found: Answer) -> int:
    assert found.time
    return found.time.flops_per_step


def page() -> dict[str, str]:
    """The parts of the page that are made, by the name of their place in it."""
    return {"savings": savings()}
