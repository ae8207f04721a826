"""A job's pipeline: its schedule, checked as the frameworks that have it do."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import CheckpointForm, Job
from estimator.parallel.schedules import SPLIT, V_SHAPED, Pipeline

TWO = frozenset({*V_SHAPED, "dualpipe"})
"""Schedules of exactly two chunks."""
ONE = frozenset({"1f1b", "gpipe"})
MOST = 2**10
"""Micro-batches of a step that are listed."""


def pipeline_of(job: Job) -> Pipeline:
    """The pipeline of a job with its defaults. Of a single rank two micro-batches stand for any number."""
    asked, count = job.parallelism, job.training.gradient_accumulation_steps
    schedule, chunks = asked.pipeline_schedule or "1f1b", asked.model_chunks or 1
    if asked.pipeline == 1:
        return Pipeline("1f1b", 1, 1, min(count, 2), 1)
    return Pipeline(schedule, asked.pipeline, chunks, count, asked.micro_batch_group or _group(schedule, asked.pipeline, count))


def _group(schedule: str, ranks: int, count: int) -> int:
    """Micro-batches that go through a chunk before the next: as many as ranks in Megatron-Core's interleaved schedule, in torch's
    as many rounds of about so many as come out even."""
    return ranks if schedule == "interleaved" else max(1, count // max(1, count // ranks))


def check_pipeline(job: Job) -> None:
    """Refuse what frameworks refuse. Raises `InvalidJob`, or `NotModelled` for what some have and is not modelled."""
    asked, pipeline = job.parallelism, pipeline_of(job)
    schedule, ranks, chunks, count = asked.pipeline_schedule, pipeline.ranks, pipeline.chunks, pipeline.micro_batches
    if ranks == 1:
        if schedule not in (None, "1f1b") or asked.model_chunks not in (None, 1) or asked.micro_batch_group is not None:
            raise Contradiction(
                "one rank has no schedule: leave it out, or write pipeline: 2 or more", "parallelism.pipeline_schedule"
            )
        return
    _check_chunks(pipeline)
    if asked.micro_batch_group is not None and schedule != "interleaved":
        raise Contradiction("only an interleaved schedule has groups: leave it out", "parallelism.micro_batch_group")
    steps = "training.gradient_accumulation_steps"
    if schedule == "interleaved":
        _check_groups(pipeline, given=asked.micro_batch_group is not None)
    if schedule == "zero-bubble" and count % max(1, count // ranks):
        rounds = count // ranks
        raise Contradiction(f"{count} micro-batches are not {rounds} rounds of as many each; write {rounds * ranks}", steps)
    if schedule in ("dualpipe", "dualpipev") and count < 2 * ranks:
        raise Contradiction(f"{schedule} on {ranks} ranks needs {2 * ranks} micro-batches or more, not {count}", steps)
    if schedule == "dualpipe" and count % 2:
        raise Contradiction(f"dualpipe sends half of its micro-batches from each end: {count} is odd", steps)
    if schedule == "dualpipe" and ranks % 2:
        raise Contradiction(f"dualpipe needs an even number of ranks, not {ranks}", "parallelism.pipeline")
    if pipeline.shortened().micro_batches > MOST:
        raise Contradiction(
            f"{schedule} holds up to {pipeline.shortened().micro_batches} micro-batches; write {MOST} or fewer", steps
        )
    recomputed = job.training.activation_checkpointing
    if schedule in SPLIT and recomputed != "none":
        raise NotModelled(
            f"recomputation under {schedule}, which puts weights' gradients off, is not modelled; write none",
            "training.activation_checkpointing",
        )
    if chunks > 1 and isinstance(recomputed, CheckpointForm) and not recomputed.modules:
        raise NotModelled(
            "recomputation of some layers is modelled for one chunk per rank; write none, full or {modules: [...]}",
            "training.activation_checkpointing",
        )


def _check_chunks(pipeline: Pipeline) -> None:
    schedule, chunks = pipeline.schedule, pipeline.chunks
    field = "parallelism.model_chunks"
    if schedule in TWO and chunks != 2:
        raise Contradiction(f"{schedule} has two chunks of the model on each rank, not {chunks}", field)
    if schedule in ONE and chunks != 1:
        raise Contradiction(f"{schedule} has one chunk of the model on each rank, not {chunks}; several: interleaved", field)
    if schedule == "interleaved" and chunks < 2:
        raise Contradiction("an interleaved schedule has two chunks of the model on each rank or more", field)


def _check_groups(pipeline: Pipeline, given: bool) -> None:
    """What `forward_backward_pipelining_with_interleaving` wants of micro-batches and their groups."""
    ranks, count, group = pipeline.ranks, pipeline.micro_batches, pipeline.group
    if not ranks <= group <= count:
        field = "parallelism.micro_batch_group" if given else "training.gradient_accumulation_steps"
        raise Contradiction(
            f"micro-batches in a group, {group}, must be {ranks}, as there are ranks, to {count}, all of them", field
        )
    if 0 < count % group < ranks:
        raise Contradiction(
            f"{count} micro-batches in groups of {group} leave {count % group}, fewer than the {ranks} ranks; write a multiple "
            f"of {group}, or a micro_batch_group",
            "training.gradient_accumulation_steps",
        )
