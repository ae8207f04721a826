"""What whoever runs the service may set, by environment variables of the name WILLITFIT_…; docs/rest.md has the table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from estimator.contract.job.part import Bytes
from estimator.contract.validation import validated

PREFIX = "WILLITFIT_"


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Settings(BaseModel):
    """How much the service takes on, and whom it answers."""

    model_config = ConfigDict(frozen=True)

    workers: Annotated[int, Field(ge=0, le=256)] = Field(
        default_factory=_processors,
        description="processes for small questions, as many for medium ones, half as many for large ones; 0: threads, no budget",
    )
    queue: Annotated[int, Field(ge=0, le=10_000)] = Field(64, description="questions that may wait in each lane")
    wait: Annotated[float, Field(gt=0, le=600)] = Field(30, description="seconds that a question waits at most")
    seconds: Annotated[float, Field(gt=0, le=3600)] = Field(20, description="of processor time that a question may take")
    quick: Annotated[float, Field(gt=0, le=3600)] = Field(
        0.5,
        description="seconds of processor time after which a question is no small one, and goes on to the lane for larger ones",
    )
    memory: Bytes = Field(2**30, description="bytes that a question may take beside what every process has: 1GiB")
    body: Annotated[float, Field(gt=0, le=600)] = Field(10, description="seconds in which a request must have come whole")
    remembered: Annotated[Bytes, Field(ge=0)] = Field(2**26, description="bytes of answers that are remembered: 64MiB")
    batch: Annotated[int, Field(ge=1, le=100_000)] = Field(1000, description="jobs of one POST /v1/estimates")
    rate: Annotated[int, Field(ge=1, le=10**6)] | None = Field(
        None, description="new questions that one client may ask in a minute; without it, any number"
    )
    cors: str = Field("*", description="origins whose pages may read answers, with commas between; none: none")
    root_path: Annotated[str, Field(pattern=r"^(/[\w.~-]+)*$")] = Field(
        "", description="path under which a proxy offers the service, such as /fit"
    )
    frames: Annotated[str, Field(pattern=r"^(\*|none|self|[\w.:/*-]+(,[\w.:/*-]+)*)$")] = Field(
        "*", description="origins whose pages may show an answer in a frame, with commas between; self, or none"
    )
    address: Annotated[str, Field(pattern=r"^(https?://[\w.:\[\]-]+)?$")] = Field(
        "", description="where the service is found from outside, such as https://fit.example.org; without it, as it is asked"
    )
    enforce: bool = Field(False, description="POST /v1/admission denies what certainly does not fit, in place of a warning")
    log: Literal["json", "none"] = Field("json", description="a line for each request on standard error, or nothing")


@cache
def settings() -> Settings:
    """Those of this process's environment; `InvalidValue` for what cannot be read."""
    return read(os.environ)


def read(environment: Mapping[str, str]) -> Settings:
    """The settings that an environment has; what is empty counts as not given."""
    given = {name: environment.get(PREFIX + name.upper(), "") for name in Settings.model_fields}
    return validated(Settings, {name: text for name, text in given.items() if text}, "settings of the service")
