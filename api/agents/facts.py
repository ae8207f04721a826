"""What is known: models, accelerators, the fields of a job; and a prompt to begin with."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, Field

from estimator.contract.job import Job
from estimator.contract.rows import GpuRow, ModelRow
from estimator.hardware.accelerator import accelerator
from estimator.views import listing
from estimator.views.inspection import inspect_model

from .server import server, tool

MOST_ROWS = 20
"""Rows of a listing, unless more are asked for."""


class Models(BaseModel):
    """Models that are known."""

    count: int
    rows: list[ModelRow]


class Gpus(BaseModel):
    """Accelerators that are known."""

    count: int
    rows: list[GpuRow]


@tool
def find_models(search: str = "", top: Annotated[int, Field(ge=1, le=1000)] = MOST_ROWS) -> Models:
    """Known models whose names have the words of `search` in them, smallest first."""
    rows = listing.models(search)
    return Models(count=len(rows), rows=[ModelRow.model_validate(row) for row in rows[:top]])


@tool
def find_gpus(search: str = "", top: Annotated[int, Field(ge=1, le=1000)] = MOST_ROWS) -> Gpus:
    """Known accelerators that have the words of `search` in a name, or as vendor, architecture, form or memory (24GB)."""
    rows = listing.gpus(search)
    return Gpus(count=len(rows), rows=[GpuRow.model_validate(row) for row in rows[:top]])


@server.resource("willitfit://schema/job", mime_type="application/schema+json")
def job_schema() -> str:
    """Every field of a job, as JSON Schema."""
    return json.dumps(Job.model_json_schema())


@server.resource("willitfit://models/{name}", mime_type="application/json")
def model(name: str) -> str:
    """What a model is made of."""
    return inspect_model(name, allow_files=False).model_dump_json()


@server.resource("willitfit://gpus/{name}", mime_type="application/json")
def gpu(name: str) -> str:
    """Every fact about an accelerator, with its sources."""
    return accelerator(name).model_dump_json()


@server.prompt()
def make_it_fit(model: str, on: str) -> str:
    """Find the smallest change with which a model can be trained or served on some hardware."""
    return (
        f"Ask the tool `fit` whether {model} fits on {on}. If a way that I may want does not, say which smallest change would "
        "make it fit and what that costs, check the change with `estimate`, and answer with the job, its bytes and its capacity."
    )
