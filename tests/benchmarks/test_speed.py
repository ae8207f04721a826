"""How fast answers come. Run with --benchmark-enable; without it, each question is asked once and nothing is timed."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from estimator import Job, estimate, fit
from estimator.facts import catalogue
from estimator.families import FAMILIES, spec_class
from estimator.parallel.topology import topology
from estimator.planner.budget import budget
from estimator.pricing import prices
from estimator.runtime.reserved import reserved
from estimator.simulation.simulation import simulate
from estimator.specs.published import model_folder, published
from estimator.specs.resolve import resolve
from estimator.tape.gpu import AMPERE
from tests.jobs import forget

pytestmark = pytest.mark.slow

TRACE_SECONDS, ESTIMATE_SECONDS = 0.005, 0.001
KINDS_OF_LAYERS = 4
"""How much longer a trace may take where layers are of several kinds, each of which is traced."""
ONE_KIND = ("llama", "mistral", "qwen2", "qwen3", "gpt2")
LARGE_SECONDS = 0.010
COLD_SECONDS, ALL_SPECS_SECONDS, PRICES_SECONDS, BUDGET_SECONDS = 0.5, 1.0, 0.05, 1.0
HEADLINE = [sys.executable, "-m", "estimator.cli", "llama-2-13b", "--on", "2x24GB"]
ALL_SPECS = """
from time import perf_counter
from estimator.specs.published import every

start = perf_counter()
assert not every()[1]
print(perf_counter() - start)
"""
FIRST = {published(name).architecture.model_type: name for name in reversed(catalogue.names(model_folder()))}
"""A model of each family that can be asked about."""
for model_type in [t for t in FIRST if t not in FAMILIES or not spec_class(t).runs]:
    del FIRST[model_type]


def median(benchmark: BenchmarkFixture) -> float | None:
    """Seconds, or None where nothing was timed."""
    return benchmark.stats.stats.median if benchmark.stats else None


def job(model: Any, **training: Any) -> dict[str, Any]:
    return {"model": model, "hardware": {"gpu": "h200"}, "training": training}


@pytest.mark.share(8)
@pytest.mark.parametrize("name", FIRST.values())
def test_a_trace(name: str, benchmark: BenchmarkFixture) -> None:
    """What a question costs that was not asked before, without the allocator."""
    asked = Job.model_validate(estimate(job(name, precision="bf16-true")).job)
    spec = resolve(name).spec
    place = topology(asked, spec)
    benchmark.pedantic(simulate, (asked, spec, place, AMPERE), setup=forget, rounds=40, warmup_rounds=2)
    assert (median(benchmark) or 0) < TRACE_SECONDS * (1 if spec.model_type in ONE_KIND else KINDS_OF_LAYERS)


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "llama-3.1-405b"])
def test_the_allocator(name: str, benchmark: BenchmarkFixture) -> None:
    """What the first answer to a question costs besides: every layer of two steps, played into the caching allocator."""
    asked = Job.model_validate(estimate(job(name, precision="bf16-true")).job)
    spec = resolve(name).spec
    benchmark.pedantic(reserved, (simulate(asked, spec, topology(asked, spec), AMPERE).build.tape, 2**23), rounds=8)


@pytest.mark.share(8)
@pytest.mark.parametrize("name", FIRST.values())
def test_one_job(name: str, benchmark: BenchmarkFixture) -> None:
    benchmark(estimate, job(name, precision="bf16-true"))
    assert (median(benchmark) or 0) < ESTIMATE_SECONDS


TRILLION: dict[str, Any] = {
    "model": "kimi-k2",
    "hardware": {"gpu": "h200", "gpus": 8, "nodes": 2048},
    "training": {"implementation": "megatron", "sequence_length": 4096, "gradient_accumulation_steps": 16},
    "parallelism": {"tensor": 8, "expert": 64},
}


@pytest.mark.parametrize("job", [job("llama-2-7b"), TRILLION], ids=["7B on one", "1T on 16,384"])
def test_the_size_of_a_job_costs_nothing(job: dict[str, Any], benchmark: BenchmarkFixture) -> None:
    benchmark(estimate, job)
    assert (median(benchmark) or 0) < LARGE_SECONDS


@pytest.mark.parametrize("layers", [8, 80])
@pytest.mark.parametrize("checkpointing", ["none", "full", "sqrt"])
def test_depth_costs_nothing(layers: int, checkpointing: str, benchmark: BenchmarkFixture) -> None:
    given = {**published("llama-3-70b").architecture.model_dump(), "num_hidden_layers": layers}
    asked = Job.model_validate(estimate(job(given, activation_checkpointing=checkpointing)).job)
    spec = resolve(given).spec
    benchmark.pedantic(simulate, (asked, spec, topology(asked, spec), AMPERE), setup=forget, rounds=40, warmup_rounds=2)


def test_the_headline_question(benchmark: BenchmarkFixture) -> None:
    benchmark(fit, "llama-2-13b", "2x24GB")


def test_a_cold_start(benchmark: BenchmarkFixture) -> None:
    benchmark.pedantic(subprocess.run, (HEADLINE,), {"check": True, "stdout": subprocess.DEVNULL}, rounds=7, warmup_rounds=1)
    assert (median(benchmark) or 0) < COLD_SECONDS


def test_all_specs(benchmark: BenchmarkFixture) -> None:
    """Every shipped spec read and validated in a new process, the modules of their families imported for it."""
    command = [sys.executable, "-c", ALL_SPECS]
    ran = benchmark.pedantic(subprocess.run, (command,), {"check": True, "capture_output": True}, rounds=7, warmup_rounds=1)
    assert not benchmark.stats or float(ran.stdout) < ALL_SPECS_SECONDS


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


def test_a_budget(benchmark: BenchmarkFixture) -> None:
    """Every way to rent a fine-tune of an 8B, over all that is shipped, none of it asked before."""
    training = {"precision": "bf16-true", "gradient_accumulation_steps": 16, "tokens": 10**8}
    asked = Job.model_validate({"model": "llama-3-8b", "training": training})
    benchmark.pedantic(budget, (asked,), setup=forget, rounds=7, warmup_rounds=1)
    assert (median(benchmark) or 0) < BUDGET_SECONDS


def test_the_price_list(benchmark: BenchmarkFixture) -> None:
    """Every shipped offer, read and validated."""
    benchmark.pedantic(prices.read, (prices.FILE,), setup=prices.read.cache_clear, rounds=20, warmup_rounds=1)
    assert (median(benchmark) or 0) < PRICES_SECONDS
