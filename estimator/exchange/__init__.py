"""Jobs in the words of the programs that run them, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job, read_job
from estimator.exchange import accelerate, deepspeed, megatron, torchtitan, writers
from estimator.exchange.configuration import Surroundings
from estimator.exchange.documents import answer, is_configuration, read, read_file
from estimator.exchange.readers import FRAMEWORKS, PARTS, PLATFORMS
from estimator.pipeline.defaults import with_defaults
from estimator.specs.resolve import resolve

__all__ = ["READ", "WRITE", "WRITTEN", "Surroundings", "answer", "is_configuration", "known", "read", "read_file", "written"]

WRITE: dict[str, Callable[[Job], str]] = {
    "deepspeed": deepspeed.write,
    "accelerate": accelerate.write,
    "torchtitan": torchtitan.write,
    "megatron": megatron.write,
}
"""Programs for which a job's parallelism is written."""
WRITTEN = (*WRITE, *writers.WHOLE)
READ = (*PARTS, *FRAMEWORKS, *PLATFORMS)
"""Whose files are read."""


def written(job: Job | Mapping[str, Any] | str | Path, to: str, allow_files: bool = True) -> str:
    """A job's parallelism as a file of `deepspeed` (JSON), `accelerate` (YAML), `torchtitan` (TOML), or `megatron`'s arguments;
    or the whole job as a file of `trl`, `axolotl`, `llama-factory`, `ms-swift`, `oumi`, `litgpt`, `torchtune`,
    `nemo-automodel` or `tensorrt-llm` (YAML), or the command of `openrlhf`, `vllm` or `sglang`.

    Raises `InvalidJob` for what the program does not have, as well as for all that `estimate` does.
    """
    known(to)
    job = read_job(job)
    model = resolve(job.model, allow_files)
    whole = with_defaults(job, model.spec, model.stored, model.embeds)[0]
    return writers.write(whole, to, allow_files) if to in writers.WHOLE else WRITE[to](whole)


def known(name: str) -> None:
    """Raise `InvalidJob` for a format that is not written."""
    if name not in WRITTEN:
        raise InvalidJob(f"{name!r} is no format; write {', '.join(WRITTEN)}", "format")
