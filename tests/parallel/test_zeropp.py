"""ZeRO++: what its second copy and its quantized exchanges change, beside what DeepSpeed itself held (test_deepspeed.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from estimator import Answer, estimate
from estimator.parallel import zero3, zeropp
from tests.jobs import forget

LAYERS = 4
LIVE = 500_000_000
"""Elements that stay gathered here, so that a model of four layers is as one that is larger than DeepSpeed's limit."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(zero3, "LIVE", LIVE)
    forget()
    yield
    forget()


def answer(gpus: int = 8, nodes: int = 2, training: dict[str, Any] | None = None, **parallelism: Any) -> Answer:
    job = {
        "model": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": LAYERS}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
        "hardware": {"gpus": gpus, "nodes": nodes},
        "parallelism": {"strategy": "zero3", **parallelism},
        "training": {"sequence_length": 512, **(training or {})},
    }
    return estimate(job)


def exchanged(answer: Answer) -> dict[tuple[str, str, str], tuple[int, int]]:
    return {(one.phase, one.operation, one.group): (one.ranks, one.count) for one in answer.communication}


@pytest.mark.parametrize("steps", [1, 4])
def test_the_second_copy_is_made_by_the_first_pass_and_dropped_after_the_step(steps: int) -> None:
    training = {"gradient_accumulation_steps": steps}
    without, with_copy = answer(training=training), answer(training=training, zero_hpz_partition_size=8)
    copy = 2 * without.parameters.total // 8
    assert with_copy.memory.resident_bytes == without.memory.resident_bytes
    step = with_copy.memory.phases["optimizer_step"] - without.memory.phases["optimizer_step"]
    assert step == pytest.approx(copy, rel=1e-4)
    released = copy * (1 - LIVE / without.parameters.total)
    forward = with_copy.memory.phases["forward"] - without.memory.phases["forward"]
    assert forward == pytest.approx(copy if steps > 1 else released, rel=1e-3)


def test_gathers_go_over_all_nodes_once_in_a_step() -> None:
    found = exchanged(answer(training={"gradient_accumulation_steps": 4}, zero_hpz_partition_size=8))
    assert found["forward", "all_gather", "data"] == (16, 1)
    assert found["forward", "all_gather", "secondary"] == (8, 3)
    assert found["backward", "all_gather", "secondary"] == (8, 4)
    assert ("backward", "all_gather", "data") not in found


def test_what_is_frozen_keeps_its_second_copy() -> None:
    training = {"adapter": {"type": "lora", "rank": 8}}
    without, with_copy = answer(training=training), answer(training=training, zero_hpz_partition_size=8)
    frozen = without.parameters.total - without.parameters.trainable
    assert with_copy.memory.resident_bytes - without.memory.resident_bytes == pytest.approx(2 * frozen // 8, rel=1e-4)


def test_gathers_in_int8_move_half_and_hold_more() -> None:
    without, quantized = answer(), answer(zero_quantized_weights=True)
    bf16, int8 = (
        sum(one.bytes for one in found.communication if (one.operation, one.phase) == ("all_gather", "forward"))
        for found in (without, quantized)
    )
    assert int8 == pytest.approx(bf16 / 2, rel=1e-3)
    largest = 4096 * 128256
    arriving = zero3.PREFETCH + largest
    more = quantized.memory.phases["forward"] - without.memory.phases["forward"]
    assert more == pytest.approx(arriving + 2 * largest, rel=0.01)  # int8 beside float16, and a parameter joined in float16


def test_gradients_in_int4_go_within_nodes_and_then_between_them() -> None:
    found = {(t.operation, t.group): t for t in answer(zero_quantized_gradients=True).communication if t.phase == "backward"}
    near, far, whole = found["all_to_all", "node"], found["all_to_all", "nodes"], found["reduce_scatter", "data"]
    assert (near.ranks, far.ranks, whole.ranks) == (8, 2, 16)
    assert near.bytes == 8 * far.bytes
    assert whole.bytes == 2 * 4096 * (2 * LAYERS + 1)  # the norms' weights stay as they are


def test_on_one_node_gradients_are_not_quantized() -> None:
    asked = answer(nodes=1, zero_quantized_gradients=True)
    assert asked.memory == answer(nodes=1).memory
    assert any("between nodes only" in said for said in asked.assumptions)


def test_reducing_holds_names_of_two_gradients() -> None:
    """By hand, for 1,000 elements in a node of ten: int4 of 500 bytes, parts of 50, and 200 in float16."""
    assert zeropp.ZeroPlusPlus().reducing_bytes(1000, 10) == 3 * 500 + 2 * 50 + 200
    assert zeropp.ZeroPlusPlus().reducing_bytes(1000, 2) == 2 * (500 + 250 + 1000)
