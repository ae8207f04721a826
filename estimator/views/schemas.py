"""The JSON Schemas (Draft 2020-12) of questions and of every answer in JSON; docs/schema/ has a file of each."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from estimator.contract.answer import Answer
from estimator.contract.errors import InvalidValue, did_you_mean
from estimator.contract.job import Job
from estimator.contract.rows import Counted, Fitting, GpuRow, ModelRow, NodeRow, OfferRow
from estimator.exchange.found import Found
from estimator.facts.spelling import shown
from estimator.hardware.accelerator import Accelerator
from estimator.hardware.node import Node
from estimator.measured.answers import Explanation
from estimator.measured.bottleneck_answer import Profiled
from estimator.measured.calibration_answer import Calibrated
from estimator.planner.answers import Budget, Differences, Fixes, Limit
from estimator.planner.headline_answer import Fit
from estimator.planner.plan_answer import Plan
from estimator.planner.replicas_answer import Replicas
from estimator.planner.swept import Swept
from estimator.planner.what_if_answer import WhatIf
from estimator.planner.which_answer import Which
from estimator.specs.schema import model_schema
from estimator.timelines.answers import Timeline
from estimator.views.inspection import Card
from estimator.watching.run_record import RunRecord

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
    "bottleneck": Profiled,
    "calibration": Calibrated,
    "watched-run": RunRecord,
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


def schema_text(name: str) -> str:
    """One of them, as it is published. Raises `InvalidValue` for a name that none has."""
    if name != "model" and name not in KINDS:
        names = (*KINDS, "model")
        raise InvalidValue(f"{shown(name)} is no schema; write {', '.join(names)}.{did_you_mean(name, names)}", "schema")
    found = model_schema() if name == "model" else {"$schema": DIALECT, **TypeAdapter(KINDS[name]).json_schema()}
    return json.dumps(found, indent=2) + "\n"
