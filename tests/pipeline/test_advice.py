"""What is suggested to a job that does not fit does make it smaller."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Answer, estimate

FULL = {"model": "llama-2-7b", "hardware": {"gpu": "rtx-4090"}, "training": {"precision": "bf16-true"}}
SERVED = {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "rtx-4090"}}

CASES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    # a job that does not fit, a word of the advice, and what the advice says to change
    (FULL, "training.adapter", {"training": {"adapter": {}}}),
    (FULL, "fsdp2", {"hardware": {"gpus": 8}, "parallelism": {"strategy": "fsdp2"}}),
    ({**FULL, "training": {"adapter": {}, "precision": "32-true"}}, "quantization nf4", {"training": {"quantization": "nf4"}}),
    (
        {
            "model": "mixtral-8x7b",
            "hardware": {"gpu": "l40s"},
            "training": {"adapter": {}, "precision": "bf16-true", "quantization": "nf4", "activation_checkpointing": "full"},
        },
        "quantized_experts true",
        {"training": {"quantized_experts": True, "adapter": {"targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}}},
    ),
    (
        {
            **FULL,
            "training": {"adapter": {}, "precision": "bf16-true", "activation_checkpointing": "none", "micro_batch_size": 8},
        },
        "activation_checkpointing full",
        {"training": {"activation_checkpointing": "full"}},
    ),
    (
        {**FULL, "training": {"precision": "bf16-true", "optimizer_implementation": "foreach"}},
        "optimizer_implementation fused",
        {"training": {"optimizer_implementation": "fused"}},
    ),
    (
        {**FULL, "model": "qwen3-0.6b", "hardware": {"memory": "9GB"}},
        "training.expandable_segments true",
        {"training": {"expandable_segments": True}},
    ),
    (
        {**FULL, "training": {"precision": "32-true"}},
        "training.optimizer adamw-8bit",
        {"training": {"precision": "32-true", "optimizer": "adamw-8bit"}},
    ),
    ({**SERVED, "serving": {"context": 200_000}}, "shorter serving.context", {"serving": {"context": 4096}}),
    ({**SERVED, "serving": {"concurrency": 512}}, "serving.concurrency", {"serving": {"concurrency": 4}}),
    ({**SERVED, "model": "llama-2-70b"}, "serving.weights fp8", {"serving": {"weights": "fp8"}}),
    ({**SERVED, "model": "llama-2-70b"}, "parallelism.tensor", {"hardware": {"gpus": 8}, "parallelism": {"tensor": 8}}),
]


def changed(job: dict[str, Any], change: dict[str, Any]) -> Answer:
    return estimate({**job, **{part: {**job.get(part, {}), **fields} for part, fields in change.items()}})


@pytest.mark.parametrize(("job", "says", "change"), CASES)
def test_it_makes_the_job_smaller(job: dict[str, Any], says: str, change: dict[str, Any]) -> None:
    before = estimate(job)
    assert before.fits is False
    assert says in " ".join(before.suggestions)
    assert changed(job, change).memory.total_bytes < before.memory.total_bytes


def test_what_fits_needs_no_advice() -> None:
    assert estimate({"model": "gpt2", "hardware": {"gpu": "h100"}}).suggestions == []
    assert estimate({"model": "gpt2"}).suggestions == []
