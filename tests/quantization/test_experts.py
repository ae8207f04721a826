"""Experts of a mixture in 4 bits, as bitsandbytes' parametrization unpacks them: its own code is the judge."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob, Job, NotModelled, estimate
from estimator.pipeline.defaults import with_defaults
from estimator.specs.resolve import resolve
from tests.jobs import counts
from tests.judge.experts import experts_step

MODEL = {
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "vocab_size": 3000,
}
EXPERTS = 3 * 16 * 3 * 1024 * 384
TRAINING: dict[str, Any] = {
    "precision": "bf16-true",
    "sequence_length": 512,
    "quantization": "nf4",
    "quantized_experts": True,
    "unquantized": ["self_attn", "mlp.gate"],
    "adapter": {"rank": 4, "targets": ["q_proj", "v_proj"]},
}


def job(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "training": {**TRAINING, **more}}


@pytest.mark.parametrize("recomputed", ["none", "full"])
@pytest.mark.parametrize("precision", [{}, {"autocast": True, "adapter": {**TRAINING["adapter"], "dtype": "fp32"}}])
def test_a_step_takes_the_bytes_that_bitsandbytes_takes(recomputed: str, precision: dict[str, Any]) -> None:
    asked = job(activation_checkpointing=recomputed, **precision)
    answer = estimate(asked)
    parsed = Job.model_validate(asked)
    spec = resolve(MODEL).spec
    assert counts(answer) == experts_step(with_defaults(parsed, spec)[0], spec)


def test_they_are_stored_in_half_a_byte_and_counted_whole() -> None:
    packed, whole = estimate(job()), estimate(job(quantized_experts=False))
    assert packed.parameters == whole.parameters
    scales = EXPERTS // 64 * 4
    assert whole.memory.resident_bytes - packed.memory.resident_bytes == pytest.approx(EXPERTS * 3 // 2 - scales, abs=2**16)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (job(quantization="int8"), "4 bits only"),
        (job(quantization=None, unquantized=None), "4 bits only"),
        ({"model": "llama-3-8b", "training": {"quantization": "nf4", "quantized_experts": True, "adapter": {}}}, "no experts"),
        (job(adapter={"rank": 4, "targets": ["gate_proj", "up_proj"]}), "adapters on experts"),
        (job(precision="deepspeed-bf16") | {"hardware": {"gpus": 2}, "parallelism": {"strategy": "zero3"}}, "write ddp"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidJob, NotModelled), match=says):
        estimate(asked)
