"""vLLM's pooling runner: encoders, and decoders that give vectors."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob, NotModelled, estimate
from tests.serving.questions import asked, logged

BODIES = [
    ("bge-large-zh", 325545608 - 1024 * (1024 + 1 + 2) - 21128, 64 * 1024 * 3),
    ("modernbert-base", 149655232 - 768 * (768 + 1) - 50368, 64 * 768),
    ("siglip-base-patch16-224", 203155970, 64 * 768),
]
"""Models, numbers of their bodies, and how many more a vocabulary in multiples of 64 rows has at most."""


@pytest.mark.parametrize(("model", "numbers", "padding"), BODIES)
def test_an_encoder_holds_its_body_and_no_cache(model: str, numbers: int, padding: int) -> None:
    """Its weights are those of the checkpoint without a head, each rounded up to 512 bytes."""
    answer = asked("vllm", model, gpu="rtx-4090")
    found = logged(answer)
    rounding = 512 * 1000 + 2 * 1024**2
    assert 2 * numbers <= found.weights_bytes <= 2 * (numbers + padding) + rounding
    assert found.cache_bytes is None
    assert answer.memory.kv_cache is None
    assert answer.job["serving"]["runner"] == "pooling"
    assert answer.serving is None
    assert answer.fits


@pytest.mark.parametrize(
    ("model", "numbers", "token"),
    [("clip-vit-base-patch32", 151277313, 12 * 2 * 512), ("clip-vit-large-patch14", 427616513, 12 * 2 * 768)],
)
def test_clip_holds_both_towers_and_keys_of_its_texts(model: str, numbers: int, token: int) -> None:
    """Its texts' tokens see those before them alone, so that vLLM caches their keys and values."""
    answer = asked("vllm", model, gpu="rtx-4090", context=77)
    assert 2 * numbers <= logged(answer).weights_bytes <= 2 * (numbers + 64 * 768) + 512 * 1000 + 2 * 1024**2
    assert answer.memory.kv_cache is not None
    assert answer.memory.kv_cache.bytes_per_token == 2 * token
    with pytest.raises(NotModelled, match="clip"):
        asked("sglang", model, context=77)


def test_a_decoder_that_embeds_has_a_cache_and_no_output_layer() -> None:
    pooled, written = (logged(asked("vllm", "qwen3-8b", gpu="h100", runner=runner)) for runner in ("pooling", "generate"))
    assert written.weights_bytes - pooled.weights_bytes == pytest.approx(2 * 151936 * 4096, abs=2 * 1024**2)
    assert pooled.cache_bytes
    assert asked("vllm", "qwen3-embedding-8b").job["serving"]["runner"] == "pooling"


def test_an_encoder_reads_a_text_in_one_pass() -> None:
    """A longer context makes its pass larger, where a decoder's is cut into chunks."""
    assert asked("vllm", "modernbert-base", gpu="rtx-4090", context=8192).job["serving"]["max_num_batched_tokens"] == 8192
    assert asked("vllm", "qwen3-8b", gpu="h100", context=16384).job["serving"]["max_num_batched_tokens"] == 8192


@pytest.mark.parametrize(
    ("model", "serving", "where"),
    [
        ("bge-large-zh", {"runner": "generate"}, "serving.runner"),
        ("bge-large-zh", {"engine_version": "0.9"}, "serving.engine_version"),
        ("bge-large-zh", {"max_num_batched_tokens": 128}, "serving.max_num_batched_tokens"),
        ("whisper-large-v3", {"runner": "pooling"}, "serving.runner"),
        ("qwen3-8b", {"runner": "pooling", "engine": "sglang"}, "serving.runner"),
        ("t5-v1.1-small", {}, "serving.engine"),
    ],
)
def test_what_it_does_not_do(model: str, serving: dict[str, Any], where: str) -> None:
    with pytest.raises((InvalidJob, NotModelled)) as refused:
        estimate({"model": model, "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"engine": "vllm", **serving}})
    assert refused.value.where == where
