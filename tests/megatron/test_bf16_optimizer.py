"""DeepSpeed's BF16_Optimizer, as Megatron-DeepSpeed has it: what it keeps, adds and exchanges; tests/data/published_runs.yaml has
its times, and docs/megatron.md what it was measured to hold."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Answer, WillItFitError, estimate
from estimator.contract.job import read_job
from estimator.pipeline.run import played
from estimator.tape.kernels import kernels
from tests.megatron.test_stages import SMALL, folded_as_unrolled, job

SPREAD = {"strategy": "zero1", "tensor": 2, "pipeline": 2}


def asked(precision: str, **spread: Any) -> dict[str, Any]:
    return job(SMALL, 8, {**SPREAD, **spread}, precision=precision, gradient_accumulation_steps=4)


def test_folded_is_unrolled() -> None:
    folded_as_unrolled(asked("deepspeed-bf16"))


def test_gradients_are_kept_in_bf16_too_and_added_in_float32_after_each_micro_batch() -> None:
    builds = [played(read_job(asked(precision)), True).simulation.build for precision in ("megatron-bf16", "deepspeed-bf16")]
    parameters = sum(p.tensor.numel * p.times for p in builds[0].parameters)
    without, added = (
        sum(times * work.nbytes for work, times in kernels(build.tape, "backward") if work.operation == "add_")
        for build in builds
    )
    assert added - without == 12 * parameters
    ours, theirs = (estimate(asked(precision)) for precision in ("megatron-bf16", "deepspeed-bf16"))
    assert theirs.memory.resident_bytes - ours.memory.resident_bytes == pytest.approx(2 * parameters, rel=1e-3)
    assert theirs.time is not None
    assert ours.time is not None
    assert theirs.time.step_seconds > ours.time.step_seconds


def test_the_buffer_is_reduced_whole_in_bf16() -> None:
    def of(found: Answer, operation: str) -> int:
        return sum(one.bytes for one in found.communication if (one.operation, one.group) == (operation, "data"))

    ours, theirs = (estimate(asked(precision)) for precision in ("megatron-bf16", "deepspeed-bf16"))
    assert of(theirs, "all_reduce") == pytest.approx(of(ours, "reduce_scatter") / 2, rel=1e-3)
    assert of(theirs, "all_gather") == of(ours, "all_gather")


@pytest.mark.parametrize(
    ("spread", "said"),
    [
        ({"strategy": "ddp"}, "first stage: write zero1"),
        ({"pipeline_schedule": "gpipe"}, "pipeline is 1f1b"),
        ({"overlap_grad_reduce": True}, "overlap_grad_reduce: not modelled with deepspeed-bf16"),
        ({"pipeline": 1, "context": 2}, "context: not modelled with deepspeed-bf16"),
    ],
)
def test_what_is_refused(spread: dict[str, Any], said: str) -> None:
    with pytest.raises(WillItFitError, match=said):
        estimate(asked("deepspeed-bf16", **spread))
