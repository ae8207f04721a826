"""What is remembered between questions changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from estimator import estimate
from estimator.simulation import simulation
from estimator.simulation import trace as tracing
from tests.jobs import cases, forget

pytestmark = pytest.mark.slow

TRAINING: dict[str, Any] = {"sequence_length": 256, "activation_checkpointing": "none"}
JOB: dict[str, Any] = {"model": "gpt2", "hardware": {"gpu": "h100"}, "training": TRAINING}


GPUS = ("a100-80gb", "rtx-3090", "l40s", "rtx-5090", "h100", "b200", "b300", "v100-32gb", "t4")
"""One of each kind that kernels are chosen by."""


@pytest.fixture
def misses(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], int]:
    """How many simulations a question takes."""
    traces = 0
    traced = tracing.trace

    def trace(*asked: Any) -> Any:
        nonlocal traces
        traces += 1
        return traced(*asked)

    monkeypatch.setattr(simulation, "trace", trace)

    def count(job: dict[str, Any]) -> int:
        before = traces
        estimate(job)
        return traces - before

    forget()
    return count


@pytest.mark.parametrize("case", cases("golden"), ids=lambda case: case["name"])
def test_the_second_answer_is_the_first(case: dict[str, Any]) -> None:
    forget()
    first, second = estimate(case["job"]), estimate(case["job"])
    forget()
    assert first.to_json() == second.to_json() == estimate(case["job"]).to_json()


@pytest.mark.parametrize("model", ["gpt2", "gemma-2b", "t5-base"])
@pytest.mark.parametrize("precision", ["bf16-true", "16-mixed", "32-true"])
def test_a_play_of_another_gpu_is_taken_only_where_it_is_the_same(model: str, precision: str) -> None:
    """Heads of 64 and of 256, which not every card's flash attention takes back; with masks; older cards without bf16."""

    def ask(gpu: str) -> str:
        training = {"sequence_length": 128, "precision": precision}
        return estimate({"model": model, "hardware": {"gpu": gpu}, "training": training}).to_json()

    apart = []
    for gpu in GPUS:
        forget()
        apart.append(ask(gpu))
    forget()
    assert [ask(gpu) for gpu in GPUS] == apart


def test_what_does_not_matter_to_a_run_plays_nothing_anew(misses: Callable[[dict[str, Any]], int]) -> None:
    assert misses(JOB) == 1
    assert misses({**JOB, "hardware": {"gpu": "b300"}}) == 0
    assert misses({**JOB, "hardware": {"gpu": "h200"}}) == 0
    assert misses({**JOB, "training": {**TRAINING, "tokens": 1_000_000}}) == 0


def test_how_the_allocator_serves_plays_nothing_anew_and_changes_the_answer(misses: Callable[[dict[str, Any]], int]) -> None:
    grown = {**JOB, "training": {**TRAINING, "expandable_segments": True}}
    assert misses(JOB) == 1
    assert misses(grown) == 0
    assert estimate(grown).memory.reserved_bytes != estimate(JOB).memory.reserved_bytes


def test_what_recomputation_saves_takes_one_play_more(misses: Callable[[dict[str, Any]], int]) -> None:
    assert misses({**JOB, "training": {**TRAINING, "activation_checkpointing": "full"}}) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": "gpt2-medium"},
        {"training": {**TRAINING, "sequence_length": 257}},
        {"task": "serve"},
        {"hardware": {"gpu": "a100-80gb"}},
        {"hardware": {"gpu": "h100", "gpus": 2}, "parallelism": {"strategy": "ddp"}},
    ],
)
def test_what_matters_does(change: dict[str, Any], misses: Callable[[dict[str, Any]], int]) -> None:
    estimate(JOB)
    assert misses({**JOB, **change}) == 1
