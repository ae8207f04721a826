"""A job's other models: what it learns from, and what guesses tokens ahead for it."""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import UnknownModel
from estimator.contract.job import Job
from estimator.specs.resolve import resolve

HEADS = ("eagle", "eagle3")
"""Methods whose model is a head, which need not be known."""


def other_models(job: Job) -> list[str | dict[str, Any]]:
    """Every model that a job names besides its own, as it is written."""
    objective, asked = job.training.objective, job.serving
    guesses = None if asked.speculative_config is None else asked.speculative_config.model
    learnt = [] if objective is None else [objective.teacher, objective.reward]
    named = (*learnt, guesses, asked.speculative_draft_model_path, asked.model_draft)
    return [model for model in named if model is not None]


def with_teacher(job: Job, allow_files: bool) -> Job:
    """The job with the architecture of its teacher, or of what rewards it, in place of a name; the same if it has neither."""
    asked = job.training.objective
    named = {} if asked is None else {"teacher": asked.teacher, "reward": asked.reward}
    found = {name: resolve(model, allow_files).spec.model_dump(mode="json") for name, model in named.items() if model is not None}
    if asked is None or not found:
        return job
    objective = asked.model_copy(update=found)
    return job.model_copy(update={"training": job.training.model_copy(update={"objective": objective})})


def with_draft(job: Job, allow_files: bool) -> Job:
    """The job with the architecture of what guesses a served model's tokens ahead, and how its checkpoint is stored, in place of
    a name; a head's name that is not known stays."""
    if job.task != "serve":
        return job
    return _of_llamacpp(_of_sglang(_of_vllm(job, allow_files), allow_files), allow_files)


def _of_llamacpp(job: Job, allow_files: bool) -> Job:
    if job.serving.model_draft is None:
        return job
    found = {"model_draft": resolve(job.serving.model_draft, allow_files).spec.model_dump(mode="json")}
    return job.model_copy(update={"serving": job.serving.model_copy(update=found)})


def _of_sglang(job: Job, allow_files: bool) -> Job:
    path, algorithm = job.serving.speculative_draft_model_path, job.serving.speculative_algorithm
    if path is None or algorithm == "NEXTN":
        return job
    try:
        found = resolve(path, allow_files).spec.model_dump(mode="json")
    except UnknownModel:
        if algorithm in ("EAGLE", "EAGLE3"):
            return job
        raise
    return job.model_copy(update={"serving": job.serving.model_copy(update={"speculative_draft_model_path": found})})


def _of_vllm(job: Job, allow_files: bool) -> Job:
    asked = job.serving.speculative_config
    if asked is None or asked.model is None:
        return job
    try:
        model = resolve(asked.model, allow_files)
    except UnknownModel:
        if asked.method in HEADS:
            return job
        raise
    found: dict[str, Any] = {"model": model.spec.model_dump(mode="json")}
    if asked.quantization is None and model.stored is not None:
        found["quantization"] = model.stored.format or None
    return job.model_copy(
        update={"serving": job.serving.model_copy(update={"speculative_config": asked.model_copy(update=found)})}
    )
