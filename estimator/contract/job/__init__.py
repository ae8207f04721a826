"""A job: the question. One contract for Python, the command line, REST and the page.

Every field has a default that a practitioner would call sane, and every default that was used comes back in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from estimator.contract.errors import InvalidValue
from estimator.contract.job.adapter import AdaLora, Adapter, Boft, Bottleneck, Dora, Ia3, LoHa, LoKr, Lora, Oft, Vera
from estimator.contract.job.calibration import Calibration
from estimator.contract.job.dtypes import Dtypes
from estimator.contract.job.hardware import Hardware, Offload, Parallelism
from estimator.contract.job.host import Host
from estimator.contract.job.part import Part, refuse_truths
from estimator.contract.job.serving import Serving
from estimator.contract.job.training import CheckpointForm, Training
from estimator.contract.validation import validated

__all__ = [
    "AdaLora",
    "Adapter",
    "Boft",
    "Bottleneck",
    "Calibration",
    "CheckpointForm",
    "Dora",
    "Dtypes",
    "Hardware",
    "Host",
    "Ia3",
    "Job",
    "LoHa",
    "LoKr",
    "Lora",
    "Oft",
    "Offload",
    "Parallelism",
    "Serving",
    "Training",
    "Vera",
    "job_from_text",
    "read_job",
]


class Job(Part):
    """The whole question: a model, a task, hardware, and settings."""

    model: str | dict[str, Any] = Field(
        description="name or alias, size such as 13B, path to a config.json or spec, or an inline architecture"
    )
    task: Literal["train", "serve"] = "train"
    hardware: Hardware = Hardware()
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    offload: Offload = Offload()
    host: Host = Host()
    serving: Serving = Serving()
    calibration: Calibration | None = Field(
        None, description="constants of one's own machine, as `willitfit calibrate` writes them"
    )


def read_job(job: Job | Mapping[str, Any] | str | Path) -> Job:
    """A job from a `Job`, a mapping, or the path of a YAML file. Raises `InvalidJob`."""
    if isinstance(job, Job):
        return job
    if isinstance(job, Mapping):
        return _validated(job, "")
    if not isinstance(job, str | Path):
        said = "write a mapping that begins with model, or the path of a YAML file"
        raise InvalidValue(f"{said}, not {type(job).__name__}", "job")
    from estimator.contract.reading import read_text

    return job_from_text(read_text(Path(job)), str(job))


def job_from_text(text: str, where: str) -> Job:
    """A job from YAML or JSON text. Raises `InvalidJob`."""
    from estimator.contract.reading import parse_yaml

    content = parse_yaml(text, where)
    if not isinstance(content, Mapping):
        raise InvalidValue("holds no mapping; a job begins with 'model:'", where)
    return _validated(content, where)


def _validated(content: Mapping[str, Any], where: str) -> Job:
    refuse_truths(Job, content, "")
    return validated(Job, dict(content), where)
