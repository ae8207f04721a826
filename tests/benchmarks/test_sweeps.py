"""How many configurations a sweep answers in a second. Run with --benchmark-enable; without it, each grid is asked once."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from estimator import sweep
from estimator.sweeps.arrays import BY_PROGRAM
from estimator.sweeps.block import remembered

pytestmark = pytest.mark.slow

MILLION_SECONDS = 1.0
"""Of processor time, for a million points of batch and length, traced anew."""
PROGRAMS_BYTES, GRID_BYTES_PER_POINT = 200_000, 60
A100 = {"gpu": "a100-80gb"}
JOBS: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"hardware": A100, "training": {"precision": "bf16-true", "activation_checkpointing": "full"}},
    "mistral-7b-v0.1": {
        "hardware": A100,
        "training": {"precision": "bf16-true", "activation_checkpointing": "none", "adapter": {"type": "lora", "rank": 16}},
    },
    "gpt2-xl": {"hardware": A100, "training": {"precision": "bf16-mixed", "activation_checkpointing": "none"}},
    "mixtral-8x7b": {
        "hardware": {"gpu": "h100", "gpus": 8},
        "training": {"precision": "bf16-mixed"},
        "parallelism": {"strategy": "fsdp2"},
    },
}


def _million(model: str) -> dict[str, range]:
    lengths = range(1, 1001) if model == "gpt2-xl" else range(8, 8008, 8)
    return {"training.micro_batch_size": range(1, 1001), "training.sequence_length": lengths}


@pytest.mark.parametrize("model", JOBS)
def test_a_million_configurations(model: str, benchmark: BenchmarkFixture) -> None:
    job, fields = {"model": model, **JOBS[model]}, _million(model)
    sweep(job, {name: values[:2] for name, values in fields.items()})  # what is loaded once is loaded
    found = benchmark.pedantic(sweep, (job, fields), setup=remembered.clear, rounds=3)
    assert (found.how == BY_PROGRAM).all()
    if benchmark.stats is not None:
        assert benchmark.stats.stats.min < MILLION_SECONDS


def test_memory() -> None:
    """What programs take that are remembered, and a million points while they are answered."""
    job, fields = {"model": "llama-3-8b", **JOBS["llama-3-8b"]}, _million("llama-3-8b")
    remembered.clear()
    tracemalloc.start()
    sweep(job, fields)
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < remembered.nbytes < PROGRAMS_BYTES
    assert highest < GRID_BYTES_PER_POINT * 1_000_000
