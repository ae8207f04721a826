"""What an objective cannot be combined with, or not yet."""

from __future__ import annotations

from estimator.errors import InvalidJob, NotModelled
from estimator.job import Job
from estimator.specs.spec import ModelSpec

WHERE = "training.objective"


def refuse(job: Job, spec: ModelSpec) -> None:
    """Raise `InvalidJob` or `NotModelled` for a settled training job whose objective does not fit the rest of it."""
    training, asked = job.training, job.training.objective
    if asked is None:
        return
    name, strategy = asked.type, job.parallelism.strategy
    if strategy not in ("none", "ddp"):
        raise NotModelled(f"{name} under {strategy} is not modelled yet; one GPU and ddp are", WHERE)
    if training.head != "causal-lm":
        raise InvalidJob(f"{name} trains a causal-lm, not {training.head}", "training.head")
    if training.implementation != "transformers" or training.loss != "eager" or training.transformers_release != "5":
        raise NotModelled(
            f"{name} is modelled with TRL's own loss over transformers 5: write implementation transformers and loss eager", WHERE
        )
    if training.activation_checkpointing not in ("none", "full"):
        raise NotModelled(
            f"{name} switches checkpointing off and on again, in full: write none or full", "training.activation_checkpointing"
        )
    if any("expert" in field for field in type(spec).model_fields):
        raise NotModelled(f"{name} of mixtures of experts, with their auxiliary loss, is not modelled yet", WHERE)
    if asked.prompt_length >= training.sequence_length:
        raise InvalidJob(
            f"a prompt of {asked.prompt_length} tokens leaves none of {training.sequence_length} for the answer",
            f"{WHERE}.prompt_length",
        )
    if asked.reference == "adapter" and not training.adapter:
        raise InvalidJob(
            "without an adapter the model is no reference of its own: write model, or precomputed", f"{WHERE}.reference"
        )
