"""How a job is spread over GPUs, in the words of the programs that run it, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job, read_job
from estimator.exchange import accelerate, deepspeed, megatron, torchtitan
from estimator.exchange.found import Found
from estimator.pipeline.defaults import with_defaults
from estimator.specs.resolve import resolve

WRITE: dict[str, Callable[[Job], str]] = {
    "deepspeed": deepspeed.write,
    "accelerate": accelerate.write,
    "torchtitan": torchtitan.write,
    "megatron": megatron.write,
}
READ: dict[str, Callable[[str], Found]] = {
    "deepspeed": deepspeed.read,
    "accelerate": accelerate.read,
    "torchtitan": torchtitan.read,
    "megatron": megatron.read,
}


def written(job: Job | Mapping[str, Any] | str | Path, to: str, allow_files: bool = True) -> str:
    """A job's parallelism as a file of `deepspeed` (JSON), `accelerate` (YAML), `torchtitan` (TOML), or `megatron`'s arguments.

    Raises `InvalidJob` for a strategy that the program does not have, as well as for all that `estimate` does.
    """
    known(to)
    job = read_job(job)
    model = resolve(job.model, allow_files)
    return WRITE[to](with_defaults(job, model.spec, model.stored)[0])


def read(text: str, given: str) -> Found:
    """What a file of such a program says of a job, and what it says that a job does not. Raises `InvalidJob`."""
    known(given)
    found = READ[given](text)
    read_job({"model": "gpt2", **found.job})  # whatever the model is, its fields are those of a job
    return found


def known(name: str) -> None:
    """Raise `InvalidJob` for a format that there is not."""
    if name not in READ:
        raise InvalidJob(f"{name!r} is no format; write {', '.join(READ)}", "format")
