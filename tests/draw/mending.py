"""A job without what refused it, to be tried again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

LENGTH = ("training", "sequence_length")
"""Taken away only where it is refused: without it a sequence is long, and a model that scans tokens takes minutes."""
KEPT = {("model",), ("task",), ("hardware",), ("hardware", "gpus"), ("training",), ("parallelism",), ("serving",), LENGTH}
"""What no mending takes away otherwise."""

Path = tuple[str, ...]


def paths(job: Any, at: Path = ()) -> Iterator[Path]:
    """Every field that a job gives, those of its model apart."""
    if isinstance(job, dict):
        for name, inner in job.items():
            if (*at, name) not in KEPT:
                yield (*at, name)
            if (*at, name) != ("model",):
                yield from paths(inner, (*at, name))


def without(job: dict[str, Any], path: Path) -> dict[str, Any]:
    """The job as it is without that field."""
    made = deepcopy(job)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    inner.pop(path[-1], None)
    return made


def mended(job: dict[str, Any], where: str, rng: random.Random) -> dict[str, Any] | None:
    """The job without the field that a refusal names, or now and then without another one; None where nothing is left."""
    known = list(paths(job))
    if not known:
        return None
    asked = tuple(where.split("."))
    if asked == LENGTH and "sequence_length" in job.get("training", {}):
        return without(job, LENGTH)
    if asked == ("training", "adapter") and ("training", "quantization") in known and asked not in known:
        return without(job, ("training", "quantization"))  # quantized weights ask for an adapter, which was taken away
    named = [path for path in known if path == asked[: len(path)] or path[: len(asked)] == asked]
    nearest = max(named, key=len) if named and rng.random() < 0.8 else rng.choice(known)
    return without(job, nearest)
