"""A job's second model, where it learns from one."""

from __future__ import annotations

from estimator.job import Job
from estimator.specs.resolve import resolve


def with_teacher(job: Job, allow_files: bool) -> Job:
    """The job with its teacher's architecture in place of its name; the same if it has none."""
    asked = job.training.objective
    if asked is None or asked.teacher is None:
        return job
    spec = resolve(asked.teacher, allow_files).spec
    objective = asked.model_copy(update={"teacher": spec.model_dump(mode="json")})
    return job.model_copy(update={"training": job.training.model_copy(update={"objective": objective})})
