"""Dropout, which TRL switches off in the models that it trains (trl/trainer/utils.py, `disable_dropout_in_model`).

Not every trainer does by default: of `disable_dropout` in each one's configuration, GRPO's and distillation's is false.
"""

from __future__ import annotations

from estimator.contract.job import Job
from estimator.families.spec import ModelSpec

EVERYWHERE = ("resid_pdrop", "embd_pdrop", "resid_dropout", "embed_dropout")
"""A spec's dropouts that are modules wherever there are any. What a model applies by a function stays."""

LEFT_ON = ("grpo", "distillation")
"""Objectives whose trainers leave dropout as the model and the adapter have it."""


def without_dropout(job: Job, spec: ModelSpec) -> tuple[Job, ModelSpec]:
    """The job and its model as an objective trains them; the same if it switches nothing off."""
    if job.training.objective is None or job.training.objective.type in LEFT_ON:
        return job, spec
    switched = {*EVERYWHERE, *spec.module_dropouts} & set(type(spec).model_fields)
    spec = spec.model_copy(update=dict.fromkeys(switched, 0.0))
    if job.training.adapter:
        adapter = job.training.adapter.model_copy(update={"dropout": 0.0})
        job = job.model_copy(update={"training": job.training.model_copy(update={"adapter": adapter})})
    return job, spec
