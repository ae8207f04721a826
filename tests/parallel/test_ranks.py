"""A GPU more under the same strategy never raises what one needs, unless the answer says why."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from estimator import Answer, estimate
from tests.draw.models import small
from tests.tapes import SMALL

RANKS = (2, 3, 4, 6, 8)
SAYS_WHY = "FSDP2 shards each parameter along its first dimension"
JOBS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "ddp", {"gradient_clipping": True}),
    ("whisper", "ddp", {"activation_checkpointing": "full"}),
    ("gemma3n_text", "zero1", {"gradient_accumulation_steps": 2}),
    ("bert", "zero1", {}),
    ("falcon_h1", "zero2", {"optimizer": "sgd"}),
    ("deepseek_v3", "zero3", {"activation_checkpointing": "full"}),
    ("t5", "fsdp1", {"precision": "bf16-true", "adapter": {"rank": 4}}),
    ("kimi_linear", "fsdp1", {"activation_checkpointing": "full"}),
    ("dinov2", "fsdp1", {"optimizer": "sgd"}),
    ("gemma4_text", "fsdp2", {"activation_checkpointing": "full"}),
    ("mamba2", "fsdp2", {"precision": "32-true"}),
    ("modernbert", "fsdp2", {"gradient_accumulation_steps": 2}),
    ("qwen2_5_vl", "fsdp2", {"adapter": {"rank": 4}}),
]
"""Families, strategies and training of small models."""


def needed(model: Any, ranks: int, spread: dict[str, Any], training: dict[str, Any]) -> Answer:
    asked = {"sequence_length": 128, **training}
    return estimate({"model": model, "hardware": {"gpus": ranks}, "parallelism": spread, "training": asked})


@pytest.mark.parametrize(("kind", "strategy", "training"), JOBS)
def test_a_gpu_more_never_needs_more(kind: str, strategy: str, training: dict[str, Any]) -> None:
    model = small(Random(0), kind)
    peaks = [needed(model, ranks, {"strategy": strategy}, training).memory.peak_bytes for ranks in RANKS]
    assert peaks == sorted(peaks, reverse=True)


def test_nor_does_one_more_that_shares_tensors() -> None:
    model = {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 8}
    peaks = [needed(model, ranks, {"tensor": ranks}, {}).memory.peak_bytes for ranks in (2, 4, 8)]
    assert peaks == sorted(peaks, reverse=True)


def test_experts_that_ranks_do_not_divide_are_said_to_take_more() -> None:
    """Eight stacked experts are two for each of four ranks, and of six, too, which gather twelve."""
    found = [needed("mixtral-8x7b", ranks, {"strategy": "fsdp2"}, {}) for ranks in RANKS]
    risen = [more for fewer, more in pairwise(found) if more.memory.peak_bytes > fewer.memory.peak_bytes]
    assert risen == [found[RANKS.index(6)]]
    said = [[said for said in answer.warnings if said.startswith(SAYS_WHY)] for answer in found]
    assert [len(of_one) for of_one in said] == [0, 1, 0, 1, 0]
    assert "has 8 there, so 6 ranks hold 2 each at most, and gather 12/8 of its bytes" in said[3][0]
