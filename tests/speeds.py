"""Measured speeds beside ours: one row per run, with the seconds of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from estimator import Answer, estimate
from tests.measured_runs import a100_runs, fsdp1_runs, megatron_runs, megatron_steps, more_megatron_runs


class Speed(NamedTuple):
    """Seconds of a step, measured and ours."""

    group: str
    name: str
    measured: float
    answer: Answer

    @property
    def error(self) -> float:
        assert self.answer.time is not None
        return self.answer.time.step_seconds / self.measured - 1


def a100_speeds() -> Iterator[Speed]:
    """Fine-tuning on one, two and four A100, as the Trainer reports it."""
    for run in [*a100_runs(), *fsdp1_runs()]:
        if not run["out_of_memory"]:
            training: dict[str, Any] = run["training"]
            tokens = training["micro_batch_size"] * training["sequence_length"]
            group = "A100, FSDP1" if run.get("gpus", 1) > 1 else "A100"
            yield Speed(group, run["name"], tokens / run["tokens_per_second"], estimate(run["job"]))


def megatron_speeds(more: bool = False) -> Iterator[Speed]:
    """Megatron-LM on eight B200, by micro-batches of a step; `more`: the runs that nothing was made with."""
    for run in more_megatron_runs() if more else megatron_runs():
        for name, steps in megatron_steps(run).items():
            training = {**run["job"]["training"], "gradient_accumulation_steps": steps}
            job = {**run["job"], "training": training}
            yield Speed("B200, Megatron", name, run["iteration_ms"][steps] / 1000, estimate(job))
