"""How long a pipeline idles: published bubbles of schedules, and what must hold of any step's."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.parallel.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Pipeline
from estimator.timing.pipeline import makespan
from estimator.timing.step import BUBBLE
from tests.megatron.test_stages import SCHEDULES, SMALL, job

FORTH, INPUTS, WEIGHTS = 1.0, 1.25, 0.75
BACK = INPUTS + WEIGHTS
"""Of a rank's layers."""


def pipeline(schedule: str, ranks: int, chunks: int, count: int) -> Pipeline:
    return Pipeline(
        schedule, ranks, chunks, count, ranks if schedule == "interleaved" else max(1, count // max(1, count // ranks))
    )


def seconds(made: Pipeline, slower: float = 1.0) -> list[dict[str, float]]:
    """Each rank's, of which one in the midst is slower."""
    parts = 1 if made.schedule == "dualpipe" else made.chunks
    each = {FORWARD: FORTH / parts, BACKWARD: BACK / parts, INPUT: INPUTS / parts, WEIGHT: WEIGHTS / parts}
    slow = {kind: one * slower for kind, one in each.items()}
    return [slow if rank == made.ranks // 2 else each for rank in range(made.ranks)]


def bubble(schedule: str, ranks: int, chunks: int, count: int) -> float:
    made = pipeline(schedule, ranks, chunks, count)
    return makespan(made, seconds(made)) - count * (FORTH + BACK)


# Narayanan et al. (2021), section 2.2: of 1F1B and GPipe, and with v chunks a v-th of it. Lamy-Poirier (2022), table 4.1.
# Qi et al. (2023), table 1, ZB-H1. Qi et al. (2024), table 1.
FORMS = [
    ("1f1b", 1, lambda p: (p - 1) * (FORTH + BACK)),
    ("gpipe", 1, lambda p: (p - 1) * (FORTH + BACK)),
    ("interleaved", 2, lambda p: (p - 1) * (FORTH + BACK) / 2),
    ("interleaved", 4, lambda p: (p - 1) * (FORTH + BACK) / 4),
    ("looped-bfs", 2, lambda p: (p - 1) * (FORTH + BACK) / 2),
    ("zero-bubble", 1, lambda p: (p - 1) * (FORTH + INPUTS - WEIGHTS)),
]


@pytest.mark.parametrize("count", [32, 200])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("schedule", "chunks", "form"), FORMS, ids=lambda one: one if isinstance(one, str | int) else "")
def test_published_bubbles(schedule: str, chunks: int, form: Any, ranks: int, count: int) -> None:
    assert bubble(schedule, ranks, chunks, count) == pytest.approx(form(ranks))


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev", "dualpipe"])
def test_what_is_put_off_fills_the_bubble(schedule: str) -> None:
    """Less than ZB-H1 leaves."""
    for ranks in (4, 8):
        assert bubble(schedule, ranks, 2, 4 * ranks) < bubble("zero-bubble", ranks, 1, 4 * ranks)


ALIKE = [("1f1b", 0), ("gpipe", 0), ("interleaved", 0.1), ("interleaved", 2), ("looped-bfs", 0), ("zero-bubble", 0), ("zbv", 0)]


@pytest.mark.parametrize("slower", [1.0, 1.5])
@pytest.mark.parametrize(("schedule", "transfer"), [*ALIKE, ("dualpipev", 0), ("dualpipe", 0)])
def test_rounds_that_are_left_out_are_alike(
    schedule: str, transfer: float, slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(schedule, 4, 1 if schedule in ("1f1b", "gpipe") else 2, 48)
    brief = makespan(made, seconds(made, slower), transfer)
    monkeypatch.setattr(Pipeline, "brief", lambda self: self)
    assert brief == pytest.approx(makespan(made, seconds(made, slower), transfer))


@pytest.mark.parametrize(("steps", "spread"), SCHEDULES, ids=str)
def test_every_schedule_computes_the_same(spread: dict[str, Any], steps: int) -> None:
    """As a plain pipeline does, and in parts that sum to its time."""
    gpus = spread.get("tensor", 1) * spread["pipeline"]
    plain = {name: size for name, size in spread.items() if name in ("pipeline", "tensor")}
    found, usual = (estimate(job(SMALL, gpus, each, gradient_accumulation_steps=steps)).time for each in (spread, plain))
    assert found
    assert usual
    assert found.flops_per_step == usual.flops_per_step
    parts = {part.name: part.seconds for part in found.parts}
    assert 0 < parts[BUBBLE] < found.step_seconds
    assert sum(parts.values()) == pytest.approx(found.step_seconds)
