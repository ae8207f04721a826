"""Megatron's optimizer in the host's memory: what leaves the GPU, and what the host gets."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob, NotModelled, estimate
from estimator.exchange import read

MODEL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}
STATES = 12
"""Bytes of a float32 weight and Adam's two moments."""


def job(gpus: int = 1, offload: dict[str, str] | None = None, **training: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "training": {"implementation": "megatron", "sequence_length": 512, **training},
        "parallelism": {"strategy": "zero1"},
        "hardware": {"gpus": gpus},
        "offload": offload or {},
    }


@pytest.mark.parametrize("gpus", [1, 4])
def test_float32_weights_and_states_leave_the_gpu(gpus: int) -> None:
    kept, sent = estimate(job(gpus)), estimate(job(gpus, {"optimizer": "cpu"}))
    saved = kept.memory.resident_bytes - sent.memory.resident_bytes
    assert saved == pytest.approx(STATES * kept.parameters.total / gpus, rel=0.01)
    assert sent.memory.phases["optimizer_step"] < kept.memory.phases["optimizer_step"]


@pytest.mark.parametrize("gpus", [1, 4])
def test_the_host_holds_them_with_a_gradient(gpus: int) -> None:
    """A float32 weight and a gradient in pinned memory, of which torch takes powers of two, and two moments."""
    kept, sent = estimate(job(gpus)), estimate(job(gpus, {"optimizer": "cpu"}))
    assert kept.host is not None
    assert sent.host is not None
    more = sent.host.phases["train"] - kept.host.phases["train"]
    each = kept.parameters.total  # every rank of the node has one in so many
    assert (STATES + 4) * each <= more <= 2 * (STATES + 4) * each


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"offload": {"optimizer": "cpu", "parameters": "cpu"}}, "only optimizer: cpu"),
        ({"offload": {"optimizer": "nvme"}}, "only optimizer: cpu"),
        ({"offload": {"optimizer": "cpu"}, "optimizer": "sgd"}, "adamw and adam"),
    ],
)
def test_what_is_not_modelled(asked: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidJob, NotModelled), match=says):
        estimate(job(**asked))


def test_arguments_say_it() -> None:
    given = "pretrain_gpt.py --micro-batch-size 1 --seq-length 512 --bf16 --use-distributed-optimizer --optimizer-cpu-offload"
    assert read(given, "megatron").job["offload"] == {"optimizer": "cpu"}
    partly = read(given + " --optimizer-offload-fraction 0.5", "megatron")
    assert "offload" not in partly.job
    assert any("offload" in one.key for one in partly.left_out)
