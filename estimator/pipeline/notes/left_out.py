"""What the bytes and the time leave out."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.answer import Time
from estimator.contract.job import Job
from estimator.contract.notes import Said, all_said
from estimator.parallel.strategies import strategy_of
from estimator.pipeline.step_time import WRITING
from estimator.serving.engines import engine_of


def not_modelled(job: Job, time: Time | None) -> Iterator[Said]:
    """Of the memory first, then of the time."""
    yield Said("kernel-workspaces", "workspaces inside kernels other than attention's")
    if job.task == "serve":
        yield from all_said(f"engine-{job.serving.engine}", engine_of(job).not_modelled, "serving.engine")
        if time is None and engine_of(job).continuous:
            yield Said("serving-time", "the time of a served model of this kind", "model")
        return
    yield Said("loading", f"what loading and saving take of the GPU{_whole_at_first(job)}", "host.loading")
    asked = job.training.objective
    if asked and asked.generation and not any(part.name == WRITING for part in (time.parts if time else ())):
        yield Said("generation-time", "the time that generating takes", "training.objective.generation")
    if asked and asked.several:
        yield Said("host-memory", "the host's memory", "training.objective")
        yield Said(
            "objective-time", "the time of writing and scoring answers, and of further epochs over them", "training.objective"
        )
    if not job.training.evaluation:
        yield Said("evaluation", "evaluation", "training.evaluation")


def _whole_at_first(job: Job) -> str:
    """Of quantized weights that transformers 5 loads for FSDP (5.23, quantizers: `update_device_map`)."""
    training = job.training
    if not training.quantization or training.transformers_release != "5" or not strategy_of(job).gathers:
        return ""
    return " (transformers 5 puts all quantized weights on each GPU before they are sharded)"
