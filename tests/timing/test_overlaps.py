"""What of Megatron's exchanges a step waits for, where they are hidden."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import Answer
from estimator.contract.errors import NotModelled
from estimator.tape.collectives import BULK, PIPELINED, RING
from estimator.timing.userbuffers import Beside

TENSOR = {"tensor": 4, "pipeline": 4, "model_chunks": 5, "strategy": "zero1"}
ALL = {"tp_comm_overlap": True, "overlap_grad_reduce": True, "overlap_param_gather": True}

WAITED = [
    (RING, 4, 1.2, 0.0, "each part comes while one is computed"),
    (RING, 4, 6.0, 3.0, "a part takes two seconds, three of which are one product's part after the other"),
    (PIPELINED, 4, 0.8, 0.2 + 3 * 0.15 * 0.2, "the last fourth, and what sending the others takes of the GPU"),
    (PIPELINED, 4, 8.0, 1 + 4 * 2 - 4, "the first product's part, and then the exchange"),
    (BULK, 1, 2.0, 0.3, "what sending takes of the GPU"),
    (BULK, 1, 5.0, 1.0, "what is longer than the product"),
]


@pytest.mark.parametrize(("how", "parts", "exchange", "waited", "why"), WAITED, ids=lambda one: str(one))
def test_what_a_product_of_four_seconds_leaves_of_an_exchange(
    how: str, parts: int, exchange: float, waited: float, why: str
) -> None:
    one = Beside("all_gather (tensor)", how, "matrix products", 4.0, 4.0 / parts, parts, exchange, 2.0)
    assert one.seen(1.0, 1.0, 0.15) == pytest.approx(2 * waited), why
    assert one.seen(3.0, 3.0, 0.15) == pytest.approx(6 * waited)


def asked(fp8: bool = False, gpus: int = 8, **parallelism: Any) -> Answer:
    """Llama-3-70B over 32 H100, two ranks of data."""
    training: dict[str, Any] = {"implementation": "megatron", "sequence_length": 4096, "gradient_accumulation_steps": 16}
    training |= {"loss": "fused", "activation_checkpointing": "none"}
    training |= {"fp8": {"recipe": "tensorwise", "param_gather": True}} if fp8 else {}
    hardware = {"gpu": "h100", "gpus": gpus, "nodes": 32 // gpus}
    return estimate({"model": "llama-3-70b", "hardware": hardware, "training": training, "parallelism": TENSOR | parallelism})


def waits(answer: Answer, group: str) -> float:
    assert answer.time
    return sum(part.seconds for part in answer.time.parts if part.name.endswith(f"({group})"))


@pytest.mark.parametrize("fp8", [False, True])
def test_userbuffers_hide_what_ranks_of_a_layer_exchange(fp8: bool) -> None:
    seen, hidden = asked(fp8), asked(fp8, tp_comm_overlap=True)
    assert seen.time
    assert hidden.time
    assert 0 < waits(hidden, "tensor") < waits(seen, "tensor") / 2
    assert hidden.time.range_seconds[1] == pytest.approx(seen.time.range_seconds[1])  # at most nothing is hidden
    assert hidden.time.range_seconds[0] < seen.time.range_seconds[0]
    assert hidden.memory.peak_bytes == seen.memory.peak_bytes


@pytest.mark.parametrize(("fp8", "numbers_bytes"), [(False, 8 * 2 + 4 * 2), (True, 8 + 4 * 2)])
def test_userbuffers_hold_all_tokens_of_a_micro_batch_twelve_times(fp8: bool, numbers_bytes: int) -> None:
    seen, hidden = asked(fp8).memory, asked(fp8, tp_comm_overlap=True).memory
    assert hidden.overhead["userbuffers"] == 4096 * 8192 * numbers_bytes
    assert hidden.overhead == seen.overhead | {"userbuffers": 4096 * 8192 * numbers_bytes}


def test_gradients_and_weights_are_exchanged_beside_passes() -> None:
    seen, reduced, both = (asked(**how) for how in ({}, {"overlap_grad_reduce": True}, {**ALL, "tp_comm_overlap": False}))
    assert waits(both, "data") < waits(reduced, "data") < waits(seen, "data")
    assert 0 < waits(both, "data") < waits(seen, "data") / 4  # of two billion parameters a bucket of 40 million is left
    assert both.memory == seen.memory


def test_userbuffers_are_refused_where_weights_gradients_are_put_off_or_ranks_are_in_several_nodes() -> None:
    with pytest.raises(NotModelled, match="zbv, which puts weights' gradients off"):
        asked(tp_comm_overlap=True, pipeline_schedule="zbv", model_chunks=2)
    with pytest.raises(NotModelled, match="tensor: 2 or fewer"):
        asked(tp_comm_overlap=True, gpus=2)
