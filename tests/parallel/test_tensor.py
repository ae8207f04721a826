"""Tensor and sequence parallelism by DTensor: what ranks exchange and hold. torch judges the bytes of a step (test_steps.py)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from estimator import Answer, estimate
from estimator.contract.job import Training
from estimator.families.spec import DecoderSpec
from estimator.parallel.tensor_checks import USUAL
from estimator.specs.resolve import resolve
from tests.jobs import OF_OTHERS
from tests.judge.ranks import losses

HIDDEN, TOKENS, WORDS, LAYERS = 256, 512, 1024, 3
MODEL = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "vocab_size": WORDS,
}


def answer(tensor: int, **training: Any) -> Answer:
    asked = {"sequence_length": TOKENS, "precision": "bf16-true", "activation_checkpointing": "none", **training}
    return estimate({"model": MODEL, "hardware": {"gpus": tensor}, "training": asked, "parallelism": {"tensor": tensor}})


def test_what_is_exchanged() -> None:
    found = {(t.phase, t.operation): (t.count, t.bytes) for t in answer(4).communication}
    hidden, logits, norm = 2 * TOKENS * HIDDEN, 2 * TOKENS * WORDS, 2 * HIDDEN
    inside = 2 * LAYERS + 1
    assert found == {
        ("forward", "reduce_scatter"): (inside, inside * hidden),
        ("forward", "all_gather"): (inside + 1, inside * hidden + logits),
        ("backward", "reduce_scatter"): (inside, inside * hidden),
        ("backward", "all_gather"): (inside, inside * hidden),
        ("optimizer_step", "all_reduce"): (inside, inside * norm),
    }


def test_recomputation_exchanges_again() -> None:
    """All of a layer but what ends it."""
    plain, recomputed = (
        {t.operation: t.count for t in answer(2, activation_checkpointing=way).communication if t.phase == "backward"}
        for way in ("none", "full")
    )
    assert recomputed["all_gather"] - plain["all_gather"] == 2 * LAYERS
    assert recomputed["reduce_scatter"] - plain["reduce_scatter"] == LAYERS


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_parameters_are_those_of_the_whole_model(tensor: int) -> None:
    assert answer(tensor).parameters == answer(1).parameters


def test_more_ranks_hold_less() -> None:
    found = [answer(tensor).memory for tensor in (1, 2, 4, 8)]
    for fewer, more in pairwise(found):
        assert more.resident_bytes < fewer.resident_bytes
        assert more.forward_end_bytes < fewer.forward_end_bytes


def test_sequences_are_parallel_unless_there_is_one_rank() -> None:
    assert answer(2).job["parallelism"]["sequence"] is True
    assert answer(1).job["parallelism"]["sequence"] is None


def test_the_plan_computes_what_the_model_computes(tmp_path: Path) -> None:
    """Two real processes, by the plan that the judge spreads models by; the norms of single heads included."""
    spec = resolve({**MODEL, "model_type": "qwen3", "num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": False}).spec
    assert isinstance(spec, DecoderSpec)
    for spread, alone in losses(spec, 2, tmp_path):
        assert spread == pytest.approx(alone, rel=1e-5)


MODELLED = {
    "precision",
    "tf32",
    "optimizer",
    "optimizer_implementation",
    "micro_batch_size",
    "sequence_length",
    "images",
    "audio",
    "tokens",
    "dataset",
    "lengths",
    "run",
} | {"gradient_accumulation_steps", "activation_checkpointing", "gradient_clipping", "expandable_segments", "attention"}


def test_every_field_is_modelled_or_refused() -> None:
    assert set(Training.model_fields) == {*USUAL} | MODELLED | OF_OTHERS
