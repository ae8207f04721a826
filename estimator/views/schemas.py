"""The JSON Schemas (Draft 2020-12) of questions and of every answer in JSON; docs/schema/ has a file of each."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from estimator.contract.answer import Answer
from estimator.contract.job import Job
from estimator.contract.rows import Counted, Fitting, GpuRow, ModelRow, NodeRow, OfferRow
from estimator.exchange.found import Found
from estimator.hardware.accelerator import Accelerator
from estimator.hardware.node import Node
from estimator.measured.answers import Explanation
from estimator.planner.answers import Budget, Differences, Fit, Fixes, Limit
from estimator.planner.plan_answer import Plan
from estimator.planner.replicas_answer import Replicas
from estimator.planner.swept import Swept
from estimator.planner.what_if_answer import WhatIf
from estimator.planner.which_answer import Which
from estimator.specs.schema import model_schema
from estimator.timelines.answers import Timeline
from estimator.views.inspection import Card

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS: dict[str, Any] = {
    "job": Job,
    "answer": Answer,
    "fit": Fit,
    "limit": Limit,
    "what-if": WhatIf,
    "sweep": Swept,
    "which": Which,
    "plan": Plan,
    "replicas": Replicas,
    "timeline": Timeline,
    "explanation": Explanation,
    "fix": Fixes,
    "diff": Differences,
    "budget": Budget,
    "verify": Counted,
    "import": Found,
    "card": Card,
    "models": list[ModelRow],
    "fitting": Fitting,
    "accelerator": Accelerator,
    "gpus": list[GpuRow],
    "node": Node,
    "nodes": list[NodeRow],
    "prices": list[OfferRow],
}
"""What is described, by the name of its schema; `model`, a file of model_specs/, is made of its families'."""


def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by its name."""
    found = {name: {"$schema": DIALECT, **TypeAdapter(kind).json_schema()} for name, kind in KINDS.items()}
    return found | {"model": model_schema()}
