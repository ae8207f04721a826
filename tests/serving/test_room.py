"""The room that vLLM leaves for its cache: the range of it holds what public logs show (tests/data/vllm_cache.yaml)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from estimator import estimate
from estimator.contract.answer import Answer
from tests.jobs import TESTS

ROWS = yaml.safe_load((TESTS / "data" / "vllm_cache.yaml").read_text(encoding="utf-8"))["rows"]
GIB = 2**30


def answered(row: dict[str, Any]) -> Answer:
    hardware = {key: row[key] for key in ("gpu", "memory", "gpus") if key in row}
    serving = {"weights": row["weights"], "gpu_memory_utilization": row["utilization"], "context": 2048}
    return estimate(
        {
            "model": row["model"],
            "task": "serve",
            "hardware": hardware,
            "serving": serving,
            "parallelism": {"tensor": row["gpus"]},
        }
    )


def inside(row: dict[str, Any]) -> bool:
    cache = answered(row).memory.kv_cache
    assert cache is not None
    assert cache.available_range_bytes is not None
    assert cache.available_bytes is not None
    least, most = cache.available_range_bytes
    assert least <= cache.available_bytes <= most
    return least <= row["cache_gib"] * GIB <= most


@pytest.mark.parametrize("aside", [False, True])
def test_nine_of_ten_logs_are_within(aside: bool) -> None:
    found = [inside(row) for row in ROWS if row.get("aside", False) is aside]
    assert len(found) >= 10
    assert sum(found) >= 0.9 * len(found)


def test_the_range_says_something() -> None:
    """It is narrower than what it is of: on an H100 with an 8B less than a sixth."""
    cache = answered(next(row for row in ROWS if row["model"] == "llama-3.1-8b" and row.get("gpu") == "h100")).memory.kv_cache
    assert cache is not None
    assert cache.available_range_bytes is not None
    least, most = cache.available_range_bytes
    assert most - least < most / 6


def test_a_cache_that_vllm_may_not_find_room_for_is_tight() -> None:
    job = {"model": "llama-3.1-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"concurrency": 100}}
    cache = estimate(job).memory.kv_cache
    assert cache is not None
    assert cache.available_range_bytes is not None
    between = (sum(cache.available_range_bytes) // 2) // (cache.needed_bytes // 100)
    answer = estimate({**job, "serving": {"concurrency": between}})
    assert answer.verdict == "tight"
    assert "vLLM may find no more than" in answer.reason


def test_only_vllm_has_a_room() -> None:
    job = {"model": "llama-3.1-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"engine": "transformers"}}
    cache = estimate(job).memory.kv_cache
    assert cache is not None
    assert cache.available_range_bytes is None
