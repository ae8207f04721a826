"""SGLang with tokens that are guessed ahead: its own settings, weights, pools and times."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.contract.answer import Answer
from estimator.contract.errors import Contradiction, NotModelled
from tests.serving.questions import asked, logged


def answer(model: str, gpus: int = 1, gpu: str = "h100", **serving: Any) -> Answer:
    return asked("sglang", model, gpus, gpu, context=8192, **serving)


@pytest.mark.parametrize(
    ("model", "given", "settings"),
    [
        ("llama-3.1-8b", {"speculative_algorithm": "EAGLE3"}, (5, 4, 8)),
        ("qwen3-8b", {"speculative_algorithm": "EAGLE3"}, (3, 1, 4)),
        ("qwen3-8b", {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 5, "speculative_eagle_topk": 1}, (5, 1, 6)),
        ("llama-3.1-8b", {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "llama-3.2-1b"}, (3, 1, 4)),
        ("llama-3.1-8b", {"speculative_algorithm": "NGRAM"}, (None, None, 12)),
    ],
)
def test_settings_unasked_are_sglangs(model: str, given: dict[str, Any], settings: tuple[int | None, ...]) -> None:
    serving = answer(model, **given).job["serving"]
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    assert tuple(serving[name] for name in names) == settings
    assert serving["max_running_requests"] == 48


@pytest.mark.parametrize(
    ("model", "gpus", "given", "layers", "more"),
    [
        ("llama-3.1-8b", 1, {"speculative_algorithm": "EAGLE3"}, 32, 1),
        ("llama-3.1-8b", 1, {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "llama-3.2-1b"}, 32, 16),
        ("deepseek-ai/DeepSeek-V3", 16, {"speculative_algorithm": "NEXTN"}, 61, 1),
        ("glm-4.5-air", 8, {"speculative_algorithm": "EAGLE"}, 46, 1),  # without a path the checkpoint's own layers
        ("llama-3.1-8b", 1, {"speculative_algorithm": "NGRAM"}, 32, 0),
    ],
)
def test_a_pool_has_room_for_the_layers_of_what_guesses(model: str, gpus: int, given: Any, layers: int, more: int) -> None:
    """As if each kept as much as one of the model's (pool_configurator.py)."""
    alone, found = answer(model, gpus, "h200").memory, answer(model, gpus, "h200", **given).memory
    assert alone.kv_cache is not None
    assert found.kv_cache is not None
    assert found.kv_cache.bytes_per_token == alone.kv_cache.bytes_per_token * (layers + more) // layers


def test_weights_of_what_guesses_leave_less_for_the_pool() -> None:
    alone, found = logged(answer("qwen3-8b")), logged(answer("qwen3-8b", speculative_algorithm="EAGLE3"))
    assert found.draft_bytes
    assert found.weights_bytes == alone.weights_bytes + found.draft_bytes
    assert (found.cache_bytes or 0) < (alone.cache_bytes or 0) - found.draft_bytes + 2**30
    assert alone.draft_bytes is None


def test_a_tree_is_verified_whole_and_written_along_one_branch() -> None:
    times = answer("llama-3.1-8b", speculative_algorithm="EAGLE3", speculative_acceptance=0.5).serving
    assert times is not None
    assert times.tokens_per_step == pytest.approx(sum(0.5**power for power in range(6)))


@pytest.mark.parametrize(
    ("model", "given", "error", "says"),
    [
        ("llama-3.1-8b", {"speculative_algorithm": "NEXTN"}, NotModelled, "no layers are known"),
        ("llama-3.1-8b", {"speculative_algorithm": "STANDALONE"}, Contradiction, "write it"),
        ("llama-3.1-8b", {"speculative_num_steps": 3}, Contradiction, "nothing is guessed ahead"),
        ("qwen3-next-80b-a3b", {"speculative_algorithm": "NEXTN"}, NotModelled, "write engine vllm"),
        (
            "qwen3-8b",
            {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_num_draft_tokens": 8},
            Contradiction,
            "write 4",
        ),
        ("qwen3-8b", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, Contradiction, "it is vLLM's"),
        ("qwen3-8b", {"engine_version": "0.5.17", "speculative_algorithm": "NGRAM"}, NotModelled, "0.5.23"),
    ],
    ids=str,
)
def test_what_is_refused_says_what_to_write(model: str, given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        answer(model, 8, "b200", **given)
