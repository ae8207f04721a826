"""A job's other models, where it learns from them."""

from __future__ import annotations

from estimator.contract.job import Job
from estimator.specs.resolve import resolve


def with_teacher(job: Job, allow_files: bool) -> Job:
    """The job with the architecture of its teacher, or of what rewards it, in place of a name; the same if it has neither."""
    asked = job.training.objective
    named = {} if asked is None else {"teacher": asked.teacher, "reward": asked.reward}
    found = {name: resolve(model, allow_files).spec.model_dump(mode="json") for name, model in named.items() if model is not None}
    if asked is None or not found:
        return job
    objective = asked.model_copy(update=found)
    return job.model_copy(update={"training": job.training.model_copy(update={"objective": objective})})
