"""Published training runs beside ours: how fast each was, and what we say of its job."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from estimator import estimate
from estimator.answer import Time

FILE = Path(__file__).parent / "data" / "published_runs.yaml"


class Run(NamedTuple):
    """One run: its job, and what was measured: tokens per second and GPU, or seconds of a step."""

    group: str
    name: str
    job: dict[str, Any]
    tokens_per_second_per_gpu: float | None
    step_seconds: float | None

    def time(self) -> Time:
        found = estimate(self.job).time
        assert found is not None
        return found

    def error(self) -> float:
        """Our seconds of a step over those that were measured, less one."""
        time = self.time()
        if self.step_seconds is not None:
            return time.step_seconds / self.step_seconds - 1
        assert self.tokens_per_second_per_gpu is not None
        return self.tokens_per_second_per_gpu / time.tokens_per_second_per_gpu - 1


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


def not_comparable() -> list[dict[str, str]]:
    """What was published and is not held against ours, with the reason."""
    return list(_table()["not_comparable"])


def published() -> Iterator[Run]:
    """Every run, in the order of the file."""
    models = _table()["models"]
    for group in _table()["groups"]:
        base = group["job"]
        for run in group["runs"]:
            model = models.get(run["model"], run["model"])
            if "changes" in run:
                model = {**model, **run["changes"]}
            hardware = {**base["hardware"], **{key: run[key] for key in ("gpu", "gpus", "nodes") if key in run}}
            parts = {part: {**base.get(part, {}), **run.get(part, {})} for part in ("training", "parallelism")}
            job = {"model": model, "hardware": hardware, **parts}
            yield Run(group["name"], run["name"], job, run.get("tokens_per_second_per_gpu"), run.get("step_seconds"))
