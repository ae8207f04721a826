"""Limits: the value with which a job fits, beside trying every value; what is in the way of the next one; what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from estimator import InvalidJob, UnknownName, estimate, limit
from estimator.cli.main import main
from estimator.contract.errors import Contradiction, NotModelled
from estimator.pipeline.estimation import judged
from tests.jobs import merged

WIDE = 128256
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WIDE,
}
MODELS: list[dict[str, Any]] = [
    LLAMA,
    {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    {**LLAMA, "model_type": "mistral", "sliding_window": 64},
    {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    {**LLAMA, "model_type": "gemma2", "head_dim": 8, "sliding_window": 96, "query_pre_attn_scalar": 8},
    {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096, "vocab_size": WIDE},
]
CARD = {"hardware": {"memory": "1GB"}}
FARTHEST = 250
"""Value up to which all are tried."""


def drawn(seed: int) -> tuple[dict[str, Any], str, str]:
    """A small job on a small card, a number of it, and the question."""
    draw = Random(seed)
    training: dict[str, Any] = {
        "precision": draw.choice(["bf16-true", "bf16-mixed", "32-true"]),
        "attention": draw.choice(["sdpa", "eager"]),
        "attention_mask": draw.choice(["none", "none", "padding"]),
        "activation_checkpointing": draw.choice(["none", "full"]),
        "expandable_segments": draw.random() < 0.3,
        "micro_batch_size": draw.choice([1, 2, 3]),
        "sequence_length": draw.choice([16, 48, 100]),
    }
    adapted = draw.random() < 0.5
    if adapted:
        training["adapter"] = {"rank": draw.choice([4, 16])}
    job: dict[str, Any] = {
        "model": draw.choice(MODELS),
        "training": training,
        "hardware": {"memory": draw.choice(["1GB", "1.2GB"])},
    }
    fields = [
        "training.sequence_length",
        "training.micro_batch_size",
        *(["training.adapter.rank"] if adapted else ["hardware.gpus"]),
    ]
    name = draw.choice(fields)
    return job, name, "min" if name == "hardware.gpus" else "max"


def changed(job: dict[str, Any], name: str, value: int) -> dict[str, Any]:
    part: dict[str, Any] = {name.rpartition(".")[2]: value}
    for step in reversed(name.split(".")[:-1]):
        part = {step: part}
    return merged(job, part)


def fits(job: dict[str, Any]) -> bool:
    try:
        return judged(job, reserves=False).verdict.fits is True and judged(job).verdict.fits is True
    except (InvalidJob, NotModelled):
        return False


def all_that_fit(job: dict[str, Any], name: str) -> Iterator[int]:
    """Every value up to the farthest that fits: of GPUs up to 64."""
    for value in range(1, 65 if name == "hardware.gpus" else FARTHEST):
        if fits(changed(job, name, value)):
            yield value


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_it_is_the_outermost_of_all_that_fit(seed: int) -> None:
    job, name, bound = drawn(seed)
    fitting = list(all_that_fit(job, name))
    thorough, quick = limit(job, name, bound, tries=4096), limit(job, name, bound)
    outermost = (max if bound == "max" else min)(fitting, default=None)
    if (thorough.value or 0) >= FARTHEST:
        assert not [value for value in fitting if value > (thorough.value or 0)]
    else:
        assert thorough.value == outermost
    assert thorough.untried == 0 or thorough.value is None
    if quick.untried == 0:
        assert quick.value == thorough.value
    elif quick.value is not None:
        assert fits(changed(job, name, quick.value))
        assert quick.next
        assert not fits(changed(job, name, quick.next.value))
