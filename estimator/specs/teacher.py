"""A job's other models: what it learns from, and what guesses tokens ahead for it."""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import UnknownModel
from estimator.contract.job import Job
from estimator.specs.resolve import resolve

HEADS = ("eagle", "eagle3")
"""Methods whose model is a head, which need not be known."""


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
    asked = job.serving.speculative_config
    if job.task != "serve" or asked is None or asked.model is None:
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
