"""Where the job in the code is not the job that was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimator.contract.answer import Answer, AnswerPart
from estimator.contract.job import Job
from estimator.parallel.strategies import strategy_of


class Difference(AnswerPart):
    """A field of the job, what it says, and what the code has."""

    field: str
    """As in a job, training.micro_batch_size; `parameters` and `trainable` are counts of the model's numbers."""
    job: Any
    code: Any

    def __str__(self) -> str:
        return f"{self.field}: {_said(self.code)} in the code, {_said(self.job)} in the job"


def differences(answer: Answer, code: Mapping[str, Any]) -> list[Difference]:
    """`code`: what the code has, by field (`code.seen`); what the job's strategy changes of a model is not compared."""
    job = Job.model_validate(answer.job)
    return [Difference(field=name, job=ours, code=theirs) for name, ours, theirs in _pairs(job, answer, code) if ours != theirs]


def _pairs(job: Job, answer: Answer, code: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What is comparable: a field, as in the job, as in the code."""
    training, counts = job.training, answer.parameters
    added = counts.trainable if training.adapter is not None else 0
    known = training.adapter is None or getattr(training.adapter, "bias", "none") == "none"
    shares = strategy_of(job)
    whole = shares.alone or shares.name == "ddp"
    for name, theirs in code.items():
        if name in ("parameters", "trainable"):
            if whole and known and job.parallelism.tensor in (None, 1):
                yield name, counts.total - added if name == "parameters" else counts.trainable, theirs
        elif name == "training.activation_checkpointing":
            ours = training.activation_checkpointing
            same = (ours != "none") == theirs
            yield name, _plain(ours), _plain(ours) if same else "full" if theirs else "none"
        elif name == "training.adapter.rank":
            yield name, getattr(training.adapter, "rank", None), theirs
        elif name == "training.adapter.dtype":
            if training.adapter is not None:
                yield name, getattr(training.adapter, "dtype", None), theirs
        elif name == "training.evaluation":
            yield name, None if training.evaluation is None else training.evaluation.micro_batch_size, theirs
        elif name == "training.precision" and not whole:
            continue  # sharding changes what parameters are held in
        elif name == "hardware.gpus":
            yield name, job.hardware.gpus, theirs
        else:
            yield name, _plain(getattr(training, name.removeprefix("training."))), theirs


def change(found: list[Difference]) -> dict[str, Any]:
    """Differences as settings of `training` that a job can take: those of its plain fields."""
    plain = [one for one in found if one.field.startswith("training.") and one.field.count(".") == 1]
    return {one.field.removeprefix("training."): one.code for one in plain if one.field != "training.evaluation"}


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else value


def _said(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)
