"""Records that a watched training wrote (`watching/run_record.py`): lines of JSON, of which the last counts."""

from __future__ import annotations

import json
from typing import Any, Literal

from estimator.measured.record import Amount, Record

KIND = "record of a watched training"
FORMAT: Literal["willitfit run 1"] = "willitfit run 1"


def read(text: str) -> Record | None:
    """Peaks of the last record; None if the text has none, or nothing was measured."""
    if FORMAT not in text:
        return None
    for line in reversed(text.splitlines()):
        found = parsed(line)
        if found.get("format") != FORMAT:
            continue
        sizes = {name: found.get(f"peak_{name}_bytes") for name in ("allocated", "reserved")}
        amounts = {name: Amount(size) for name, size in sizes.items() if isinstance(size, int) and 0 <= size < 1 << 50}
        return Record(KIND, amounts) if amounts else None
    return None


def parsed(line: str) -> dict[str, Any]:
    """A line of JSON; empty where it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
