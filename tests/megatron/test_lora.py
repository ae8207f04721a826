"""LoRA beside Transformer Engine's layers: what it holds and saves, counted by hand from mcore-bridge's source."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import NotModelled, estimate
from tests.megatron.test_stages import SMALL, SPARSE, folded_as_unrolled, job

RANK, H, F, LAYERS = 8, 512, 1536, 8
QKV, MLP = H + 2 * (H // 2), 2 * F
OUTER = RANK * (H + QKV + H + H + H + MLP + F + H)
"""Parameters of a layer's four adapters: of queries, keys and values, of what follows attention, and of both parts of the MLP."""
EXPERTS = {"model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256} | {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "vocab_size": 8192,
    "num_experts": 16,
    "num_experts_per_tok": 4,
}


def adapted(model: dict[str, Any], dropout: float = 0.0, gpus: int = 1, parallelism: Any = None, **training: Any) -> Any:
    return job(model, gpus, parallelism, adapter={"rank": RANK, "dropout": dropout}, **training)


def test_what_is_trained() -> None:
    """On one GPU the parameters of the tape, on several those of the whole model, whatever a rank has of them."""
    whole = estimate(job(SMALL)).parameters
    for gpus, parallelism in ((1, None), (2, {"tensor": 2}), (4, {"tensor": 2, "pipeline": 2})):
        found = estimate(adapted(SMALL, gpus=gpus, parallelism=parallelism)).parameters
        assert (found.total, found.trainable) == (whole.total + LAYERS * OUTER, LAYERS * OUTER), parallelism
    alone = estimate(adapted(EXPERTS)).parameters
    for parallelism in ({"expert": 4}, {"tensor": 2, "expert": 2, "expert_tensor": 1}):
        assert estimate(adapted(EXPERTS, gpus=4, parallelism=parallelism)).parameters == alone, parallelism


def test_what_is_held_of_what_is_trained() -> None:
    """Of an adapter the model's type, a gradient and a copy in float32, and Adam's two states; of the rest 2 bytes each."""
    whole = estimate(job(SMALL)).parameters.total
    memory = estimate(adapted(SMALL)).memory
    held = memory.at_peak["parameters"] + memory.at_peak["optimizer_states"]
    assert held - 2 * whole == pytest.approx((2 + 4 + 8) * LAYERS * OUTER, rel=0.02)  # norms' and embeddings' blocks


def test_what_is_saved() -> None:
    """Of a token: each adapter keeps its own product of its first matrix, and what the second adds is not kept; the final norm's
    result is not, as the output layer's weight is frozen. A dropout keeps a mask of a byte, and its result where something else
    keeps what it read: attention's."""
    saved = {}
    for name, asked in (("full", job), ("lora", adapted), ("dropped", lambda model, **more: adapted(model, 0.1, **more))):
        ends = [estimate(asked(SMALL, sequence_length=tokens)).memory.forward_end_bytes for tokens in (1024, 2048)]
        saved[name] = (ends[1] - ends[0]) / 1024
    assert saved["lora"] - saved["full"] == LAYERS * 4 * 2 * RANK - 2 * H
    assert saved["dropped"] - saved["lora"] == LAYERS * (H + H + H + F + 2 * H)


@pytest.mark.parametrize("model", [SMALL, EXPERTS], ids=["dense", "mixture"])
def test_folded_layers_are_as_unrolled(model: dict[str, Any]) -> None:
    folded_as_unrolled(adapted(model, 0.1, activation_checkpointing="full"))
    folded_as_unrolled(adapted(model, 0.1, gpus=4, parallelism={"tensor": 2, "sequence": True, "pipeline": 2}))


def test_experts_of_another_rank_are_counted() -> None:
    """The whole model's, on as many GPUs as divide the experts among them."""
    assert estimate(job(EXPERTS, 4, {"expert": 4})).parameters == estimate(job(EXPERTS)).parameters


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (job(SMALL, adapter={"rank": 8, "targets": ["q_proj"]}), "LoRA on all linear layers"),
        (job(SMALL, adapter={"type": "dora", "rank": 8}), "LoRA on all linear layers"),
        (adapted(SPARSE), "latent attention"),
        (adapted(SMALL, fp8={"recipe": "blockwise"}), "products in fp8"),
        (adapted(SMALL, mtp_num_layers=1), "layers that predict further tokens"),
    ],
    ids=["targets", "dora", "latent", "fp8", "ahead"],
)
def test_what_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(NotModelled, match=said):
        estimate(asked)
