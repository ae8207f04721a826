"""The smallest job that still shows what a drawn one showed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tests.draw.mending import paths, without
from tests.draw.outcome import Outcome, outcome

PLAIN = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4}


def kind(found: Outcome) -> str:
    """What stays the same while a job is shrunk: that it differs, or which exception it meets."""
    return "difference" if found.why.startswith("difference") else found.why


def shrunk(job: dict[str, Any], found: Outcome, seconds: float = 60.0) -> tuple[dict[str, Any], Outcome]:
    """Take away field after field, and then of the model, while the finding stays."""
    until, smallest, last, again = time.monotonic() + seconds, job, found, True
    while again:
        again = False
        for smaller in _smaller(smallest):
            if time.monotonic() > until:
                return smallest, last
            tried = outcome(smaller)
            if tried.kind == "finding" and kind(tried) == kind(found):
                smallest, last, again = smaller, tried, True
                break
    return smallest, last


def _smaller(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Jobs with one thing less, what is largest first."""
    for path in sorted(paths(job), key=len):
        yield without(job, path)
    model = job["model"]
    if model.get("model_type") != "llama":
        yield {**job, "model": {**PLAIN, "vocab_size": 1000}}
    if model.get("num_hidden_layers", 1) > 1:
        yield {**job, "model": {**model, "num_hidden_layers": 1}}
    for name in model:
        if name != "model_type":
            yield {**job, "model": {key: value for key, value in model.items() if key != name}}
    for name in ("micro_batch_size", "gradient_accumulation_steps"):
        if job.get("training", {}).get(name, 1) > 2:
            yield {**job, "training": {**job["training"], name: 2}}
