"""Properties that any tape must have, whatever the job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Answer, WillItFitError, estimate
from estimator.tape.kernels import flops
from estimator.tape.tape import ALLOCATION_STEP
from tests.tapes import SMALL, assert_folded_as_unrolled


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Training jobs over every strategy and kind of checkpointing."""
    strategy = draw(st.sampled_from(["none", "ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"]))
    return {
        "model": {**SMALL, "num_hidden_layers": draw(st.integers(1, 12))},
        "hardware": {"gpus": 1 if strategy == "none" else draw(st.sampled_from([2, 3, 8])), "memory": "24GB"},
        "parallelism": {"strategy": strategy},
        "training": {
            "precision": draw(st.sampled_from(["bf16-mixed", "32-true"])),
            "optimizer_implementation": draw(st.sampled_from(["foreach", "fused", "forloop"])),
            "micro_batch_size": draw(st.integers(1, 3)),
            "sequence_length": draw(st.sampled_from([128, 300])),
            "gradient_accumulation_steps": draw(st.integers(1, 3)),
            "activation_checkpointing": draw(st.sampled_from(["none", "full", {"every": 2}, {"every": 3}, "sqrt"])),
            "adapter": draw(st.sampled_from([None, {"rank": 4}])),
        },
    }


def answered(job: dict[str, Any]) -> Answer | None:
    """The answer, or None where the job is refused."""
    try:
        return estimate(job)
    except WillItFitError:
        return None


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(jobs())
def test_layers_that_are_replayed_are_those_that_would_be_played(job: dict[str, Any]) -> None:
    if answered(job) is None:
        return
    tape, long_tape = assert_folded_as_unrolled(job)
    assert [flops(tape, phase) for phase in ("forward", "backward")] == [
        flops(long_tape, phase) for phase in ("forward", "backward")
    ]


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(jobs(), st.sampled_from(["micro_batch_size", "sequence_length"]))
def test_more_tokens_never_take_less(job: dict[str, Any], what: str) -> None:
    more = {**job, "training": {**job["training"], what: job["training"][what] * 2}}
    before, after = answered(job), answered(more)
    assert (before is None) == (after is None)
    if before and after:
        assert after.memory.peak_bytes >= before.memory.peak_bytes
        assert after.memory.forward_end_bytes > before.memory.forward_end_bytes
        assert after.memory.resident_bytes == before.memory.resident_bytes


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(jobs())
def test_a_deeper_model_never_takes_less(job: dict[str, Any]) -> None:
    deeper = {**job, "model": {**job["model"], "num_hidden_layers": job["model"]["num_hidden_layers"] + 4}}
    before, after = answered(job), answered(deeper)
    if before and after:
        assert after.memory.peak_bytes > before.memory.peak_bytes
        assert after.memory.resident_bytes > before.memory.resident_bytes


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(jobs())
def test_the_parts_at_the_peak_are_the_peak(job: dict[str, Any]) -> None:
    answer = answered(job)
    if answer is None:
        return
    memory = answer.memory
    assert sum(memory.at_peak.values()) == memory.peak_bytes == max(memory.phases.values())
    assert min(memory.at_peak.values()) > 0
    assert memory.peak_bytes % ALLOCATION_STEP == 0
    assert memory.total_bytes == memory.peak_bytes + sum(memory.overhead.values())
    assert memory.range_bytes[0] <= memory.total_bytes <= memory.range_bytes[1]
    assert memory.resident_bytes <= min(memory.phases.values())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["none", "ddp", "zero2", "zero3", "fsdp2"])
@pytest.mark.parametrize("layer_count", [1, 2, 3, 7, 16])
def test_checkpointing_never_keeps_more(strategy: str, layer_count: int) -> None:
    job = {
        "model": {**SMALL, "num_hidden_layers": layer_count},
        "hardware": {"gpus": 1 if strategy == "none" else 4},
        "parallelism": {"strategy": strategy},
    }
    kept = {}
    for how in ("none", {"every": 3}, {"every": 2}, "full"):
        answer = estimate({**job, "training": {"activation_checkpointing": how, "sequence_length": 256}})
        kept[str(how)] = answer.memory.forward_end_bytes
    ordered = list(kept.values())
    assert ordered == sorted(ordered, reverse=True), kept


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp2"])
def test_more_ranks_never_hold_more_of_a_model(strategy: str) -> None:
    held = []
    for gpus in (2, 4, 8, 16):
        job = {"model": {**SMALL, "num_hidden_layers": 8}, "hardware": {"gpus": gpus}, "parallelism": {"strategy": strategy}}
        held.append(estimate(job).memory.resident_bytes)
    assert held == sorted(held, reverse=True)
    assert held[0] > held[-1]


def test_fsdp2_shards_are_the_whole_model() -> None:
    """Where rows divide by the ranks, the shards of all ranks are the parameters, no more."""
    whole = estimate({"model": {**SMALL, "num_hidden_layers": 4}, "training": {"precision": "32-true", "optimizer": "sgd"}})
    for gpus in (2, 4, 8):
        job = {
            "model": {**SMALL, "num_hidden_layers": 4},
            "hardware": {"gpus": gpus},
            "training": {"precision": "32-true", "optimizer": "sgd"},
            "parallelism": {"strategy": "fsdp2"},
        }
        shard = estimate(job)
        assert shard.parameters == whole.parameters
        assert gpus * shard.memory.resident_bytes == pytest.approx(whole.memory.resident_bytes, rel=0.0005)


def test_accumulation_beyond_two_batches_changes_no_peak() -> None:
    def peaks(steps: int) -> dict[str, int]:
        return estimate({"model": "llama-3.2-1b", "training": {"gradient_accumulation_steps": steps}}).memory.phases

    assert peaks(2) == peaks(3) == peaks(1000)
    assert peaks(2)["backward"] > peaks(1)["backward"]
