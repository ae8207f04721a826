"""How fast answers come. Run with --benchmark-enable; without it, each question is asked once and nothing is timed."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from estimator import Job, catalogue, estimate, fit, playing
from estimator.parallel.topology import topology
from estimator.playing import play
from estimator.runtime.reserved import reserved
from estimator.specs.published import model_folder, published
from estimator.specs.resolve import resolve
from estimator.tape.tape import AMPERE

TRACE_SECONDS, ESTIMATE_SECONDS = 0.005, 0.003
COLD_SECONDS = 0.5
RUNNING = [name for name in catalogue.names(model_folder()) if published(name).architecture.runs]
HEADLINE = [sys.executable, "-m", "estimator.cli", "llama-2-13b", "--on", "2x24GB"]


def median(benchmark: BenchmarkFixture) -> float | None:
    """Seconds, or None where nothing was timed."""
    return benchmark.stats.stats.median if benchmark.stats else None


def job(model: Any, **training: Any) -> dict[str, Any]:
    return {"model": model, "hardware": {"gpu": "h200"}, "training": training}


@pytest.mark.parametrize("name", RUNNING)
def test_a_trace(name: str, benchmark: BenchmarkFixture) -> None:
    """What a question costs that was not asked before, without the allocator."""
    asked = Job.model_validate(estimate(job(name)).job)
    spec = resolve(name).spec
    place = topology(asked, spec)
    benchmark.pedantic(play, (asked, spec, place), setup=forget, rounds=40, warmup_rounds=2)
    assert (median(benchmark) or 0) < TRACE_SECONDS


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "llama-3.1-405b"])
def test_the_allocator(name: str, benchmark: BenchmarkFixture) -> None:
    """What the first answer to a question costs besides: every layer of two steps, played into the caching allocator."""
    asked = Job.model_validate(estimate(job(name)).job)
    spec = resolve(name).spec
    benchmark.pedantic(reserved, (play(asked, spec, topology(asked, spec), AMPERE).build.tape, 2**23), rounds=8)


@pytest.mark.parametrize("name", RUNNING)
def test_one_job(name: str, benchmark: BenchmarkFixture) -> None:
    benchmark(estimate, job(name))
    assert (median(benchmark) or 0) < ESTIMATE_SECONDS


def forget() -> None:
    """Let the next question be a new one."""
    playing._played.cache_clear()


@pytest.mark.parametrize("layers", [8, 80])
@pytest.mark.parametrize("checkpointing", ["none", "full", "sqrt"])
def test_depth_costs_nothing(layers: int, checkpointing: str, benchmark: BenchmarkFixture) -> None:
    given = {**published("llama-3-70b").architecture.model_dump(), "num_hidden_layers": layers}
    asked = Job.model_validate(estimate(job(given, activation_checkpointing=checkpointing)).job)
    spec = resolve(given).spec
    benchmark.pedantic(play, (asked, spec, topology(asked, spec)), setup=forget, rounds=40, warmup_rounds=2)


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
