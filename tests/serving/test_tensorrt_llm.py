"""TensorRT-LLM: what it logged when it started (tests/data/tensorrt_llm_starts.yaml), its rules, and what it refuses."""

from __future__ import annotations

from functools import cache
from statistics import median
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import Answer
from estimator.contract.errors import WillItFitError
from estimator.contract.units import GIB
from estimator.serving.tensorrt_llm import settings
from tests.held_out import whole_groups
from tests.jobs import TESTS, content
from tests.serving.questions import unanswered

ROWS: list[dict[str, Any]] = content(TESTS / "data" / "tensorrt_llm_starts.yaml")["rows"]
ITS_OWN = {
    "weights": "weights",
    "kv_cache": "kv_cache",
    "version": "engine_version",
    "batch": "max_batch_size",
    "tokens_of_a_pass": "max_num_tokens",
    "fraction": "free_gpu_memory_fraction",
    "context": "context",
    "ep": "ep_size",
    "attention_dp": "enable_attention_dp",
}
NAMES = [row["name"] for row in ROWS]


def served(model: str, hardware: dict[str, Any], **serving: Any) -> Answer:
    parallelism = {"tensor": hardware.get("gpus", 1)}
    return estimate(
        {
            "model": model,
            "task": "serve",
            "hardware": hardware,
            "parallelism": parallelism,
            "serving": {"engine": "tensorrt-llm", **serving},
        }
    )


@cache
def answer(name: str) -> Answer:
    row = next(row for row in ROWS if row["name"] == name)
    given = {theirs: row[key] for key, theirs in ITS_OWN.items() if key in row}
    return served(row["model"], {"gpu": row["gpu"], "gpus": row["gpus"]}, disable_cuda_graph=not row.get("graphs", True), **given)


def errors(logged: str, field: str) -> list[float]:
    """By how much an engine's figure is off what was logged, of each row that says it."""
    found = []
    for row in ROWS:
        if logged in row:
            engine = answer(row["name"]).memory.engine
            assert engine is not None
            found.append(abs(getattr(engine, field) / (row[logged] * GIB) - 1))
    return found


def test_weights_are_within_half_a_percent() -> None:
    found = errors("weights_gib", "weights_bytes")
    assert len(found) == 8
    assert median(found) <= 0.003
    assert max(found) <= 0.006


def test_caches_are_within_a_percent() -> None:
    found = errors("cache_gib", "cache_bytes")
    assert len(found) == 5
    assert median(found) <= 0.005
    assert max(found) <= 0.011


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_ranges_hold_what_was_logged(row: dict[str, Any]) -> None:
    """Of the cache, of what is allocated while it profiles, and of what lies outside torch."""
    cache = answer(row["name"]).memory.kv_cache
    engine = answer(row["name"]).memory.engine
    assert cache is not None
    assert engine is not None
    assert cache.available_range_bytes is not None
    low, high = (size / GIB for size in cache.available_range_bytes)
    assert low <= row.get("cache_gib", low) <= high
    if "tokens" in row:
        assert row["tokens"] * cache.bytes_per_token / GIB == pytest.approx(row["cache_gib"], abs=0.01)
    assert cache.bytes_per_token == row.get("bytes_of_a_token", cache.bytes_per_token)
    if "outside_gib" in row:
        fact = settings.facts()["outside_tensor_parallel" if row["gpus"] > 1 else "outside"]
        assert fact.low / 1024 <= row["outside_gib"] <= fact.high / 1024
    if "activations_gib" in row:
        assert engine.activation_bytes is not None
        share = settings.facts()["mixture"]
        assert share.low <= row["activations_gib"] * GIB / engine.activation_bytes <= share.high


def test_rows_are_held_out_by_model() -> None:
    models: dict[str, list[str]] = {}
    for row in ROWS:
        models.setdefault(row["model"], []).append(row["name"])
    assert {row["name"] for row in ROWS if row.get("aside")} == whole_groups(models)


def engine_of(model: str, hardware: dict[str, Any], **serving: Any) -> Any:
    return served(model, hardware, **serving).memory.engine


def test_its_share_is_of_what_is_free() -> None:
    """Half of the share is half of the cache, whatever the weights are; whole blocks of 32 tokens, or of as many as are asked."""
    whole = engine_of("llama-3.1-8b", {"gpu": "h100"}, free_gpu_memory_fraction=0.8)
    half = engine_of("llama-3.1-8b", {"gpu": "h100"}, free_gpu_memory_fraction=0.4)
    assert half.cache_bytes == pytest.approx(whole.cache_bytes / 2, abs=32 * 131072)
    assert whole.cache_tokens % 32 == 0
    assert engine_of("llama-3.1-8b", {"gpu": "h100"}, tokens_per_block=128).cache_tokens % 128 == 0
    assert engine_of("llama-3.1-8b", {"gpu": "h100"}, max_total_tokens=10000).cache_tokens == 9984


def test_key_heads_are_copied_and_latents_are_whole() -> None:
    """Of 4 key heads on 8 ranks each has one; a latent of 576 numbers is on every rank, in 61 layers."""
    qwen = served("qwen3-30b-a3b", {"gpu": "h100", "gpus": 8}, ep_size=8)
    deepseek = served("deepseek-v3", {"gpu": "h200", "gpus": 8}, weights="fp8-block", kv_cache="fp8", ep_size=8)
    assert qwen.memory.kv_cache is not None
    assert deepseek.memory.kv_cache is not None
    assert qwen.memory.kv_cache.bytes_per_token == 48 * 2 * 128 * 2
    assert deepseek.memory.kv_cache.bytes_per_token == 61 * 576


def test_windows_keep_all_tokens_unasked() -> None:
    """gpt-oss' log says 73,728 bytes of a token: 36 layers of 8 heads, though every second one has a window."""
    cache = served("gpt-oss-120b", {"gpu": "h200"}, weights="mxfp4").memory.kv_cache
    assert cache is not None
    assert cache.bytes_per_token == 36 * 8 * 64 * 2 * 2


def test_a_context_that_is_too_long_is_cut() -> None:
    found = served("llama-3.1-8b", {"gpu": "rtx-4090"}, context=131072)
    assert found.verdict == "does not fit"
    assert "would cut max_seq_len to" in str(found)


def test_every_other_model_is_refused() -> None:
    """Not one is left without an answer or a reason."""
    refused, answered = unanswered("tensorrt-llm", lambda message: "registry" if "registry" in message else "not modelled")
    assert answered == 153
    assert set(refused) == {"registry", "not modelled"}
    assert {"llama", "qwen3", "gpt_oss", "deepseek_v3"}.isdisjoint(refused["registry"] | refused["not modelled"])


@pytest.mark.parametrize(
    ("model", "serving", "says"),
    [
        ("llama-3.1-8b", {"gpu_memory_utilization": 0.8}, "free_gpu_memory_fraction"),
        ("llama-3.1-8b", {"engine_version": "0.20"}, "releases 1.0 to 1.2"),
        ("gpt-oss-20b", {"engine_version": "1.0", "weights": "mxfp4"}, "since 1.1"),
        ("smollm3-3b", {}, "registry"),
        ("llama-4-scout", {}, "is not modelled"),
        ("llama-3.1-8b", {"weights": "gptq-int4"}, "loads no weights in gptq-int4"),
        ("llama-3.1-8b", {"ep_size": 2}, "no experts"),
        ("llama-3.1-8b", {"enable_attention_dp": True}, "mixtures alone"),
        ("llama-3.1-8b", {"max_num_seqs": 8}, "vLLM's"),
        ("mixtral-8x7b", {"ep_size": 3}, "do not divide"),
    ],
)
def test_what_it_does_not_do_is_refused(model: str, serving: dict[str, Any], says: str) -> None:
    with pytest.raises(WillItFitError, match=says):
        served(model, {"gpu": "h100", "gpus": 4}, **serving)


def test_a_model_without_a_cache_is_refused() -> None:
    """An encoder made of a decoder's layers."""
    with pytest.raises(WillItFitError, match="is not modelled"):
        served("embeddinggemma-300m", {"gpu": "h100"})
