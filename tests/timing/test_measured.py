"""What was measured or published elsewhere, against the estimate."""

from __future__ import annotations

from statistics import median
from typing import Any
from unittest import mock

import pytest
import torch

from estimator import Job, estimate
from estimator.contract.units import GIB, MIB
from estimator.specs.resolve import resolve
from estimator.verify.step import fake_step
from tests import gpu
from tests.jobs import cases, job_of
from tests.loading import left_of_blocks, santacoder
from tests.measured_runs import CUBLAS_WORKSPACES, a100_runs, as_measured, fsdp1_runs

RUNS = a100_runs()
SUCCEEDED = [run for run in RUNS if not run["out_of_memory"]]
CLOSE_TO_THE_CARD = 0.03
PEAK, RESIDENT = 1.2e-4, 4 * MIB
"""How near the estimate comes. What is resident differs by the batch, which the trainer still holds: up to 3 MiB."""
SMALLER = {"powerlm": 2.8e-4, "santacoder": 2.2e-4}
"""How near it comes to peaks of models of which 2 to 4 MiB that were not found are a larger part."""
PEAKS = {
    "base mixtral qlora nf4 baseline-peft-bnb 4": (
        0.008,
        "peaks while one expert runs; 286 MiB are what 1.5 times its share of the tokens would hold, which nobody measured",
    ),
    "base santacoder qlora nf4 accelerated-peft-bnb 4": (0.0025, "28 MiB that are left of blocks, as of what is resident"),
}
RESIDENTS = {
    "base santacoder qlora nf4 accelerated-peft-bnb 4": (29 * MIB, "28 MiB that are left of blocks"),
    "granite powerlm qlora nf4 baseline-peft-bnb 8": (
        5 * MIB,
        "the batch, and 4 MiB that were not found; in the others of this model 2 MiB",
    ),
}
"""Runs whose estimate is further off, how far, and why."""


TIGHT = {"fsdp1 base llama-2-70b qlora gptq-int4 accelerated-peft-autogptq-foak 2 x 4": 1.039}
"""A run that ran out at 3.9 % below the card, and how far below: its blocks were not used again as the rules say."""


def block(layers: int) -> dict[str, Any]:
    return job_of(
        {"model": "llama-2-7b", "layers": layers, "training": {"precision": "bf16-true", "activation_checkpointing": "none"}}
    )


def test_a_llama_2_7b_block_saves_364_27_mib() -> None:
    """bf16, one sequence of 2048 tokens, sdpa; the closed formula 34 s b h would say 272 MiB."""
    saved, counted = [], []
    for layers in (2, 3):
        answer = estimate(block(layers))
        saved.append(answer.memory.forward_end_bytes - answer.memory.resident_bytes)
        job = Job.model_validate(answer.job)
        torch = fake_step(job, resolve(job.model).spec)
        counted.append(torch["forward_end"] - torch["resident"])
    assert saved[1] - saved[0] == counted[1] - counted[0]
    assert round((saved[1] - saved[0]) / MIB, 2) == 364.27


@pytest.mark.parametrize("run", SUCCEEDED, ids=lambda run: run["name"])
def test_the_allocated_bytes_of_a_measured_run(run: dict[str, Any]) -> None:
    memory = estimate(run["job"]).memory
    peak, _why = PEAKS.get(run["name"], (SMALLER.get(run["model"], PEAK), ""))
    resident, _why = RESIDENTS.get(run["name"], (RESIDENT, ""))
    assert memory.peak_bytes + CUBLAS_WORKSPACES == pytest.approx(run["peak_allocated_bytes"], rel=peak)
    assert memory.resident_bytes + CUBLAS_WORKSPACES == pytest.approx(run["end_allocated_bytes"], abs=resident)


@pytest.mark.parametrize("run", fsdp1_runs(), ids=lambda run: run["name"])
def test_a_measured_run_under_fsdp1(run: dict[str, Any]) -> None:
    """Within 8e-5 of the peak; more where experts take what tokens they get, and where a small model of all weights has it in
    layers. It ran where we say that it fits, unless close, or tight."""
    answer = estimate(run["job"])
    assert answer.memory.capacity_bytes
    if abs(answer.memory.total_bytes / answer.memory.capacity_bytes - 1) > CLOSE_TO_THE_CARD and run["name"] not in TIGHT:
        assert answer.fits is not run["out_of_memory"]
    if run["out_of_memory"]:
        return
    error = {"santacoder": 0.013, "powerlm": 0.0032, "mixtral": 0.0015}.get(run["model"], 8e-5)
    peak = as_measured(run, answer.memory.peak_bytes, answer)
    assert peak == pytest.approx(run["peak_allocated_bytes"], rel=error)
    if "adapter" in run["training"]:
        resident = as_measured(run, answer.memory.resident_bytes, answer)
        assert resident == pytest.approx(run["end_allocated_bytes"], abs=RESIDENT)


def test_what_nvidia_smi_showed_under_fsdp1_tight_or_not() -> None:
    """The one that ran out further below the card than `CLOSE_TO_THE_CARD` is said to be tight."""
    for run in fsdp1_runs():
        if run["name"] in TIGHT:
            memory = estimate(run["job"]).memory
            assert memory.capacity_bytes
            assert memory.range_bytes[1] > memory.capacity_bytes > memory.total_bytes * TIGHT[run["name"]]


def test_what_loading_leaves_of_blocks() -> None:
    """SantaCoder in 4 bits: with what is left of blocks, and three tensors of the batch, its resident bytes are equal."""
    run = next(run for run in RUNS if run["name"] == "base santacoder qlora nf4 accelerated-peft-bnb 4")
    batch = 3 * 8 * run["training"]["micro_batch_size"] * run["training"]["sequence_length"]
    known = estimate(run["job"]).memory.resident_bytes + CUBLAS_WORKSPACES + batch
    assert run["end_allocated_bytes"] - known == pytest.approx(left_of_blocks(santacoder()), abs=MIB // 16)


def test_what_nvidia_smi_showed() -> None:
    """Half of the runs within 5.3 %; all but those that hold float32 logits, whose blocks were not used again as the rules say.
    Half were within 5 % while the replay left blocks of layers behind, which are not there."""
    errors = [abs(estimate(run["job"]).memory.total_bytes / MIB / run["nvidia_smi_mib"] - 1) for run in SUCCEEDED]
    assert median(errors) < 0.053
    fused = [error for run, error in zip(SUCCEEDED, errors, strict=True) if run["training"].get("loss") == "fused"]
    assert len(fused) > 10
    assert max(fused) < 0.01


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_a_measured_run_fits_or_does_not(run: dict[str, Any]) -> None:
    answer = estimate(run["job"])
    assert answer.memory.capacity_bytes is not None
    if abs(answer.memory.total_bytes / answer.memory.capacity_bytes - 1) > CLOSE_TO_THE_CARD:
        assert answer.fits is not run["out_of_memory"]


def test_foreach_holds_the_steps_of_all_parameters_at_once() -> None:
    """Mistral-7B: the measured 67.46 GiB, and 13.5 GiB less with the fused implementation."""
    job = next(run["job"] for run in RUNS if run["name"] == "base mistral-7b-v0.1 full none 4")
    fused = {**job, "training": {**job["training"], "optimizer_implementation": "fused"}}
    foreach_bytes, fused_bytes = estimate(job).memory.peak_bytes, estimate(fused).memory.phases["optimizer_step"]
    assert (foreach_bytes + CUBLAS_WORKSPACES) / GIB == pytest.approx(67.46, abs=0.005)
    assert (foreach_bytes - fused_bytes) / GIB == pytest.approx(13.5, abs=0.05)


@pytest.mark.parametrize("case", cases("gpu"), ids=lambda case: case["name"])
def test_what_is_to_be_measured_is_answered_and_fits(case: dict[str, Any]) -> None:
    assert estimate({**job_of(case), "hardware": {"gpu": "a100-80gb"}}).fits


def test_nothing_is_measured_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(torch.cuda, "is_available", return_value=False):
        assert gpu.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err
