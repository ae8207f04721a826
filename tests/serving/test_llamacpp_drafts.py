"""llama.cpp with a smaller model that guesses tokens ahead: what lies where."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import Answer
from estimator.contract.errors import Contradiction, NotModelled

MODEL = "llama-3.1-8b"


def answer(model: str = MODEL, gpus: int = 1, **serving: Any) -> Answer:
    given = {"engine": "llama.cpp", "weights": "q4_k_m", "context": 8192, **serving}
    return estimate({"model": model, "task": "serve", "hardware": {"gpu": "rtx-4090", "gpus": gpus}, "serving": given})


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_smaller_model_lies_beside_the_model_with_a_cache_of_its_own(gpus: int) -> None:
    """As it would alone, with logits for a token of each sequence; the model's graph has them for every guess."""
    alone = answer(gpus=gpus, outputs=4, concurrency=1).memory.devices
    small = answer("llama-3.2-1b", gpus=gpus, weights="q8_0", outputs=1).memory.devices
    found = answer(gpus=gpus, model_draft="llama-3.2-1b", weights_draft="q8_0")
    assert alone is not None
    assert small is not None
    assert found.memory.devices is not None
    for one, other, both in zip(alone, small, found.memory.devices, strict=True):
        assert both.weights_bytes == one.weights_bytes + other.weights_bytes
        assert both.cache_bytes == one.cache_bytes + other.cache_bytes
        assert both.compute_bytes == one.compute_bytes + other.compute_bytes
    assert found.job["serving"]["outputs"] == 4
    assert found.serving is None
    assert any("guesses 3 tokens ahead" in said for said in found.assumptions)


def test_its_cache_is_in_float16_whatever_the_models_is_in_and_layers_may_stay_on_the_host() -> None:
    narrow = answer(kv_cache="q8_0", model_draft="llama-3.2-1b").memory.devices
    model = answer(kv_cache="q8_0").memory.devices
    small = answer("llama-3.2-1b").memory.devices
    assert narrow is not None
    assert model is not None
    assert small is not None
    assert narrow[0].cache_bytes == model[0].cache_bytes + small[0].cache_bytes
    away = answer(model_draft="llama-3.2-1b", gpu_layers_draft=0).memory.devices
    assert away
    assert away[0].weights_bytes == model[0].weights_bytes


@pytest.mark.parametrize(
    ("serving", "error", "says"),
    [
        ({"spec_draft_n_max": 3}, Contradiction, "no smaller model guesses"),
        ({"model_draft": "bge-m3"}, Contradiction, "write no text"),
        ({"model_draft": "gpt-j-6b"}, NotModelled, "llama.cpp with gptj models"),
        ({"speculative_acceptance": 0.5, "model_draft": "llama-3.2-1b"}, Contradiction, "speculative_acceptance"),
    ],
)
def test_what_is_refused_says_why(serving: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        answer(**serving)
