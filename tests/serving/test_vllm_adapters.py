"""vLLM's slots for LoRA adapters, and a model that sees, with and without what it sees with."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob
from tests.serving.questions import asked, logged

LLAMA = 32 * ((3 + 1) * 4096 + 4096 + 2 * 1024 + 4096 + 2 * 4096 + 2 * 14336 + 14336 + 4096) + 2 * (128256 + 4096)
"""Numbers of Llama-3.1-8B's slot per rank: of 32 layers queries, keys and values, the output, both halves of the gated layer and
the last; and of the two embeddings."""
QWEN = 48 * (3 * 2048 + 4096 + 2 * 512 + 4096 + 2048 + 2048 + 128 + 128 * (2 * 2048 + 2 * 768 + 768 + 2048)) + 2 * (151936 + 2048)
"""Qwen3-30B-A3B's: attention, the router, and 128 experts."""


def _slots(model: str, gpus: int, loras: int, rank: int, **serving: Any) -> int:
    slots = {"enable_lora": True, "max_loras": loras, "max_lora_rank": rank}
    with_ = logged(asked("vllm", model, gpus, "h100", **serving, **slots))
    return with_.weights_bytes - logged(asked("vllm", model, gpus, "h100", **serving)).weights_bytes


@pytest.mark.parametrize(
    ("model", "numbers", "loras", "rank"),
    [("llama-3.1-8b", LLAMA, 1, 16), ("llama-3.1-8b", LLAMA, 8, 64), ("qwen3-30b-a3b", QWEN, 1, 16)],
)
def test_a_slot_is_a_pair_of_matrices_of_each_layer(model: str, numbers: int, loras: int, rank: int) -> None:
    """But for what the allocator rounds up."""
    assert _slots(model, 1, loras, rank) == pytest.approx(2 * loras * rank * numbers, rel=0.002)


def test_ranks_share_what_they_share_of_the_layers() -> None:
    """Of a layer whose outputs are divided every rank has all of A, of one whose inputs are, all of B."""
    one, two = (_slots("llama-3.1-8b", gpus, 4, 32) for gpus in (1, 2))
    assert one / 2 < two < one


def test_weights_in_few_bits_have_slots_of_the_models_type() -> None:
    assert _slots("llama-3.1-8b", 1, 2, 16, weights="awq-int4") == _slots("llama-3.1-8b", 1, 2, 16)


def test_texts_alone_leave_the_tower_out() -> None:
    """Qwen2.5-VL's tower has 676 million numbers; Gemma 3's is run in the profile, too."""
    whole, alone = (logged(asked("vllm", "qwen2.5-vl-7b", language_model_only=only)) for only in (False, True))
    assert whole.weights_bytes - alone.weights_bytes == pytest.approx(2 * 676550144, rel=0.01)
    whole, alone = (logged(asked("vllm", "gemma-3-4b", language_model_only=only)) for only in (False, True))
    assert (whole.activation_bytes or 0) > (alone.activation_bytes or 0)


@pytest.mark.parametrize(
    ("model", "serving", "says"),
    [
        ("falcon-7b", {"enable_lora": True}, "takes no LoRA adapters of falcon"),
        ("qwen3-8b", {"max_loras": 4}, "enable_lora true"),
        ("qwen3-8b", {"enable_lora": True, "max_lora_rank": 24}, "max_lora_rank"),
        ("qwen3-8b", {"enable_lora": True, "max_loras": 0}, "max_loras"),
        ("qwen3-8b", {"language_model_only": True}, "nothing but texts"),
        ("qwen3-8b", {"engine": "sglang", "enable_lora": True}, "it is vLLM's"),
    ],
)
def test_what_is_refused(model: str, serving: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        asked(serving.pop("engine", "vllm"), model, **serving)
