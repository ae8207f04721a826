"""How fast answers come. Run with --benchmark-enable; without it, each question is asked once and nothing is timed."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from estimator import catalogue, estimate, fit
from estimator.specs.published import model_folder, published

ESTIMATE_SECONDS = 0.005
COLD_SECONDS = 0.5
HEADLINE = [sys.executable, "-m", "estimator.cli", "llama-2-13b", "--on", "2x24GB"]


def median(benchmark: BenchmarkFixture) -> float | None:
    """Seconds, or None where nothing was timed."""
    return benchmark.stats.stats.median if benchmark.stats else None


def job(model: Any, **training: Any) -> dict[str, Any]:
    return {"model": model, "hardware": {"gpu": "h200"}, "training": training}


@pytest.mark.parametrize("name", catalogue.names(model_folder()))
def test_one_job(name: str, benchmark: BenchmarkFixture) -> None:
    benchmark(estimate, job(name))
    assert (median(benchmark) or 0) < ESTIMATE_SECONDS


@pytest.mark.parametrize("layers", [8, 80])
@pytest.mark.parametrize("checkpointing", ["none", "full", "sqrt"])
def test_depth_costs_nothing(layers: int, checkpointing: str, benchmark: BenchmarkFixture) -> None:
    spec = {**published("llama-3-70b").architecture.model_dump(), "num_hidden_layers": layers}
    benchmark(estimate, job(spec, activation_checkpointing=checkpointing))


def test_the_headline_question(benchmark: BenchmarkFixture) -> None:
    benchmark(fit, "llama-2-13b", "2x24GB")


def test_a_cold_start(benchmark: BenchmarkFixture) -> None:
    benchmark.pedantic(subprocess.run, (HEADLINE,), {"check": True, "stdout": subprocess.DEVNULL}, rounds=7, warmup_rounds=1)
    assert (median(benchmark) or 0) < COLD_SECONDS


def test_answers_leave_nothing_behind() -> None:
    """After the first, whose facts stay read, no answer keeps memory."""
    estimate(job("gpt2"))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20):
        estimate(job("gpt2"))
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 200_000
