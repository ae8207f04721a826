"""The OpenAPI document, with examples that are answers really given."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from api.problems import Problem
from estimator.contract.job import Job
from estimator.pipeline.estimation import estimate
from estimator.planner.headline import fit

DESCRIPTION = """\
Does a transformer fit on a GPU, why, what would make it fit, how long, how much: derived operation by operation, without a GPU.

Bytes are integers. Money is decimal text. `fits` is null where the honest answer is "unknown". Errors are problem details
(RFC 9457) whose `type` leads to an explanation. Fields may be added; those that are there keep their names and meaning within v1.
"""
EXAMPLE_JOB: dict[str, Any] = {
    "model": "llama-2-13b",
    "hardware": {"gpu": "rtx-4090", "gpus": 2},
    "training": {"precision": "bf16-true", "adapter": {"type": "lora", "rank": 16}, "quantization": "nf4-double"},
    "parallelism": {"strategy": "ddp"},
}
ESTIMATE_QUERY: dict[str, Any] = {
    "parameters": [
        {
            "name": name,
            "in": "query",
            "required": name == "model",
            "description": text,
            "schema": {"type": "string"},
            "example": example,
        }
        for name, text, example in (
            ("model", "name, alias or size", "llama-2-13b"),
            ("on", "hardware", "2x24GB"),
            ("task", "train or serve", "train"),
            ("training.precision", "any field of a job by its dotted name", "bf16-true"),
        )
    ]
}
JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}, "example": EXAMPLE_JOB}},
    }
}
IMPORT_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}, "example": "fsdp_version: 2"}}}
}

_JOB_OR_TEXT = {"anyOf": [{"$ref": "#/components/schemas/Job"}, {"type": "string"}]}
DIFF_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["a", "b"],
                    "additionalProperties": False,
                    "properties": {"a": _JOB_OR_TEXT, "b": _JOB_OR_TEXT},
                },
                "example": {"a": EXAMPLE_JOB, "b": {**EXAMPLE_JOB, "parallelism": {"strategy": "fsdp2"}}},
            }
        },
    }
}


def answers(model: type[BaseModel] | None) -> dict[int | str, dict[str, Any]]:
    """The responses of a route: its model, and problems."""
    found: dict[int | str, dict[str, Any]] = {
        status: {
            "description": text,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, text in ((404, "unknown model or accelerator"), (413, "body too large"), (422, "invalid or not modelled"))
    }
    if model is not None:
        found[200] = {"description": "the answer", "model": model}
    return found


def install(app: FastAPI) -> None:
    """Have the document made when it is first requested, examples and all."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = schema["components"]["schemas"]
    job = Job.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= job.pop("$defs")
    schemas |= {"Job": job, "Problem": Problem.model_json_schema()}
    full, headline = estimate(EXAMPLE_JOB).to_json(), fit("llama-2-13b", "2x24GB").to_json()
    for path, method, example in (
        ("/v1/estimate", "get", full),
        ("/v1/estimate", "post", full),
        ("/v1/fit", "get", headline),
    ):
        content = schema["paths"][path][method]["responses"]["200"]["content"]
        content["application/json"]["example"] = json.loads(example)
    examples = {"model": "llama-2-13b", "on": "2x24GB"}
    for entry in schema["paths"]["/v1/fit"]["get"]["parameters"]:
        if entry["name"] in examples:
            entry["example"] = examples[entry["name"]]
    return schema
