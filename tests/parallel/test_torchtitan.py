"""torchtitan's own Llama 3: what of a job it has. torchtitan itself judges the bytes of a step (judge/torchtitan.py)."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Answer, InvalidJob, NotModelled, estimate
from estimator.contract.job import Job, Training
from estimator.contract.units import GIB
from estimator.exchange import read, written
from estimator.parallel.torchtitan_checks import USUAL
from tests.jobs import OF_OTHERS
from tests.tapes import assert_folded_as_unrolled

MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}


def job(**changes: Any) -> dict[str, Any]:
    """A job; a mapping's fields are added to its own."""
    own: dict[str, Any] = {
        "model": MODEL,
        "hardware": {"gpus": 4},
        "training": {"implementation": "torchtitan", "sequence_length": 256, "activation_checkpointing": "none"},
    }
    return own | {name: {**own.get(name, {}), **given} for name, given in changes.items()}


def answer(**training: Any) -> Answer:
    return estimate(job(training=training))


WAYS: list[Any] = ["none", "full", "selective", {"every": 2}, {"every": 3}, {"every": 7}, {"every": 8}]


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_folded_as_unrolled(way: Any, tensor: int, gpus: int) -> None:
    training = {"activation_checkpointing": way, "gradient_accumulation_steps": 2, "optimizer_implementation": "foreach"}
    spread = {"strategy": "none" if gpus == 1 else "fsdp2", "tensor": tensor}
    settled = estimate(
        job(training=training | {"precision": "bf16-true"}, hardware={"gpus": gpus * tensor}, parallelism=spread)
    ).job
    assert_folded_as_unrolled(settled)


def test_ranks_share_a_loss() -> None:
    """Of each token they ask each other for the highest score, the sum, and the label's; scores stay where they are."""
    asked = [
        c
        for c in estimate(job(parallelism={"tensor": 2})).communication
        if (c.operation, c.group, c.phase) == ("all_reduce", "tensor", "forward")
    ]
    assert [(c.count, c.bytes) for c in asked] == [(3, 3 * 256 * 4)]


def test_every_kth_layer_is_recomputed_from_the_kth_on() -> None:
    """So that of 7 layers every 8th is none, where transformers takes the first."""
    assert answer(activation_checkpointing={"every": 8}).memory == answer().memory
    seventh, all_of = (answer(activation_checkpointing=way).memory.forward_end_bytes for way in ({"every": 7}, "full"))
    assert all_of < seventh < answer().memory.forward_end_bytes


def test_each_further_micro_step_leaves_its_tokens_and_loss() -> None:
    two, many = (answer(gradient_accumulation_steps=steps, micro_batch_size=3).memory.forward_end_bytes for steps in (2, 100))
    assert many - two == 98 * (8 * 3 * 256 + 512)


def test_rotations_are_of_the_length_that_is_trained() -> None:
    short, long = (answer(sequence_length=tokens).memory.resident_bytes for tokens in (256, 512))
    assert long - short == 256 * (256 // 8 // 2) * 8


def test_it_is_written_for_torchtitan() -> None:
    settled = Job.model_validate(estimate(job()).job)
    assert 'fsdp_reshard_after_forward = "default"' in written(settled, "torchtitan")
    assert "reshard_after_forward" not in read(written(settled, "torchtitan"), "torchtitan").job["parallelism"]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model": {"tie_word_embeddings": True}}, InvalidJob, "model.tie_word_embeddings"),
    ({"model": {"attention_bias": True}}, InvalidJob, "model.attention_bias"),
    ({"model": {"mlp_bias": True}}, InvalidJob, "model.mlp_bias"),
    ({"model": {"hidden_act": "gelu"}}, InvalidJob, "model.hidden_act"),
    ({"model": {"head_dim": 64}}, InvalidJob, "model.head_dim"),
    ({"model": {"attention_dropout": 0.1}}, InvalidJob, "model.attention_dropout"),
    ({"model": {"model_type": "qwen2"}}, NotModelled, "training.implementation"),
    ({"model": {"model_type": "granite"}}, NotModelled, "training.implementation"),
    ({"training": {"precision": "16-mixed"}}, InvalidJob, "training.precision"),
    ({"training": {"precision": "bf16-mixed", "dtypes": {"weights": "bf16"}}}, InvalidJob, "training.dtypes.weights"),
    ({"training": {"optimizer": "sgd"}}, InvalidJob, "training.optimizer"),
    ({"training": {"optimizer_implementation": "bitsandbytes", "optimizer": "adamw-8bit"}}, NotModelled, "training.optimizer"),
    ({"training": {"adapter": {}}}, NotModelled, "training.adapter"),
    ({"training": {"attention": "eager"}}, NotModelled, "training.attention"),
    ({"training": {"attention_mask": "packed"}}, NotModelled, "training.attention_mask"),
    ({"training": {"objective": "dpo"}}, NotModelled, "training.objective"),
    ({"training": {"evaluation": {}}}, NotModelled, "training.evaluation"),
    ({"training": {"loss": "fused"}}, NotModelled, "training.loss"),
    ({"training": {"loss": "chunked"}}, NotModelled, "training.loss"),
    ({"training": {"trainable": "bias"}}, NotModelled, "training.trainable"),
    ({"training": {"head": "sequence-classification"}}, NotModelled, "training.head"),
    ({"training": {"reentrant_checkpointing": True}}, NotModelled, "training.reentrant_checkpointing"),
    ({"training": {"zero_grad_to_none": False}}, NotModelled, "training.zero_grad_to_none"),
    ({"training": {"autocast": True, "precision": "bf16-true"}}, NotModelled, "training.autocast"),
    ({"training": {"transformers_release": "4.48"}}, NotModelled, "training.transformers_release"),
    ({"training": {"activation_checkpointing": "sqrt"}}, InvalidJob, "training.activation_checkpointing"),
    ({"training": {"activation_checkpointing": {"layers": 2}}}, InvalidJob, "training.activation_checkpointing"),
    ({"training": {"activation_checkpointing": {"budget": "1GiB"}}}, NotModelled, "training.activation_checkpointing"),
    ({"parallelism": {"tensor": 4}}, InvalidJob, "parallelism.tensor"),
    ({"parallelism": {"tensor": 2, "sequence": False}}, InvalidJob, "parallelism.sequence"),
    ({"parallelism": {"tensor": 2}, "hardware": {"gpus": 2}}, InvalidJob, "training.precision"),
    ({"parallelism": {"tensor": 2}, "training": {"sequence_length": 255}}, InvalidJob, "training.sequence_length"),
    ({"parallelism": {"pipeline": 2}}, NotModelled, "parallelism.pipeline"),
    ({"parallelism": {"context": 2}}, NotModelled, "parallelism.context"),
    ({"parallelism": {"strategy": "ddp"}}, NotModelled, "parallelism.strategy"),
    ({"parallelism": {"strategy": "zero3"}}, InvalidJob, "parallelism.strategy"),
    ({"parallelism": {"strategy": "fsdp1"}}, InvalidJob, "parallelism.strategy"),
    ({"parallelism": {"strategy": "fsdp2"}, "hardware": {"gpus": 1}}, InvalidJob, "parallelism.strategy"),
    ({"parallelism": {"gradient_sync": False}}, InvalidJob, "parallelism.gradient_sync"),
    ({"offload": {"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"}}, NotModelled, "offload"),
]


@pytest.mark.parametrize(("change", "error", "where"), REFUSED, ids=lambda given: str(given)[:60])
def test_what_it_does_not_have_is_refused(change: dict[str, Any], error: type[Exception], where: str) -> None:
    with pytest.raises(error) as refused:
        estimate(job(**change))
    assert getattr(refused.value, "where", None) == where


def test_what_was_published_as_reserved_is_reserved() -> None:
    """torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: Llama 3 8B on eight H100 of 96 GB, 82.4 GiB. Without blocks
    of their own for the streams that gather and reduce it was 76.4."""
    training = {"micro_batch_size": 2, "sequence_length": 8192, "optimizer_implementation": "foreach"}
    training |= {"implementation": "torchtitan", "precision": "bf16-mixed", "activation_checkpointing": "selective"}
    spread = {"parallelism": {"strategy": "fsdp2"}, "hardware": {"gpu": "h200", "gpus": 8}}
    reserved = estimate({"model": "llama-3.1-8b", "training": training, **spread}).memory.reserved_bytes
    assert reserved == pytest.approx(82.4 * GIB, rel=0.01)


MODELLED = {
    "precision",
    "dtypes",
    "tf32",
    "optimizer",
    "optimizer_implementation",
    "micro_batch_size",
    "sequence_length",
    "images",
    "audio",
    "tokens",
} | {
    "dataset",
    "run",
    "gradient_accumulation_steps",
    "activation_checkpointing",
    "gradient_clipping",
    "expandable_segments",
    "implementation",
}


def test_every_field_is_modelled_or_refused() -> None:
    assert set(Training.model_fields) == {*USUAL} | MODELLED | OF_OTHERS | {"fp8", "mtp_num_layers"}
