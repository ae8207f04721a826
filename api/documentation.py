"""The OpenAPI document, with examples that are answers really given."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from estimator.contract.job import Job
from estimator.pipeline.estimation import estimate
from estimator.planner.headline import fit

from .page import render_docs
from .problems import Problem

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
            ("model", "name, alias or size, or the text of a config.json", "llama-2-13b"),
            ("on", "hardware", "2x24GB"),
            ("task", "train or serve", "train"),
            ("training.precision", "any field of a job by its dotted name", "bf16-true"),
        )
    ]
}
_BADGE = (
    (
        "way",
        "a usual way of using the model: serve, serve-8bit, serve-4bit, serve-gguf, qlora, lora, full or full-mixed",
        "qlora",
    ),
    ("label", "what the left half says, in place of the question", "fits"),
)
BADGE_QUERY: dict[str, Any] = {
    "parameters": [
        *ESTIMATE_QUERY["parameters"],
        *(
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}, "example": example}
            for name, text, example in _BADGE
        ),
    ]
}
JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}, "example": EXAMPLE_JOB}},
    }
}
EXAMPLE_LINES = f"{json.dumps(EXAMPLE_JOB)}\n{json.dumps({'model': 'qwen3-8b', 'task': 'serve', 'hardware': {'gpu': 'h100'}})}\n"


def _lines(example: str) -> dict[str, Any]:
    """A body of JSON, a line each."""
    content = {"application/x-ndjson": {"schema": {"type": "string"}, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _beside_job(name: str, example: str) -> dict[str, Any]:
    """A body of a job and a text of this name."""
    schema = {
        "type": "object",
        "properties": {"job": {"$ref": "#/components/schemas/Job"}, name: {"type": "string"}},
        "required": ["job", name],
        "additionalProperties": False,
    }
    content = {"application/json": {"schema": schema, "example": {"job": EXAMPLE_JOB, name: example}}}
    return {"requestBody": {"required": True, "content": content}}


JOBS_BODY = _lines(EXAMPLE_LINES)
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.02 GiB is free. "
    "Of the allocated memory 21.30 GiB is allocated by PyTorch, and 812.00 MiB is reserved by PyTorch but unallocated."
)
DMON = "# gpu     sm    mem    enc    dec\n# Idx      %      %      %      %\n    0     54     31      0      0\n"
PROFILE_BODY = _beside_job("profile", DMON)
_RECORDED: dict[str, Any] = {"format": "willitfit run 1", "job": EXAMPLE_JOB, "step_seconds": 1.25}
RECORDS_BODY = _lines(f"{json.dumps(_RECORDED)}\n")
EXPLAIN_BODY = _beside_job("measured", MESSAGE)
IMPORT_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}, "example": "fsdp_version: 2"}}}
}
TAGS = [
    {"name": "questions", "description": "Does it fit, how far can it go, what does it cost."},
    {"name": "exchange", "description": "Jobs from frameworks' files, and the other way."},
    {"name": "facts", "description": "Models, accelerators, nodes and prices that are known."},
    {"name": "cluster", "description": "For who starts jobs on a cluster."},
    {"name": "embedding", "description": "Answers within other pages."},
    {"name": "health", "description": "For whoever runs the service."},
]
PROBLEMS = (
    (404, "unknown model or accelerator"),
    (408, "the body did not come to its end"),
    (413, "body too large"),
    (414, "address too long"),
    (422, "invalid, not modelled, or too costly"),
    (429, "too many new questions of one client; Retry-After says when to ask again"),
    (503, "more questions wait than are taken on; Retry-After says when to ask again"),
)

ADMISSION_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["request"],
                    "properties": {"request": {"type": "object", "required": ["uid"], "properties": {"uid": {"type": "string"}}}},
                },
                "example": {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "request": {"uid": "705ab4f5", "operation": "CREATE", "object": {"kind": "Pod", "spec": {"containers": []}}},
                },
            }
        },
    }
}
_JOB_OR_TEXT = {"anyOf": [{"$ref": "#/components/schemas/Job"}, {"type": "string"}]}
CHECK_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "additionalProperties": False,
                    "properties": {"files": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 32}},
                },
                "example": {"files": {"train.yaml": "model: gpt2\nhardware: {gpu: t4}\n"}},
            }
        },
    }
}
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


def answers(model: Any, *others: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a route: its model, `others` by their media types, and problems."""
    found: dict[int | str, dict[str, Any]] = {
        status: {
            "description": text,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, text in PROBLEMS
    }
    if model is not None:
        found[200] = {"description": "the answer", "model": model, "content": {other: {} for other in others}}
    return found


NOTHING: dict[int | str, dict[str, Any]] = {200: {"description": "it is so"}, 503: answers(None)[503]}
LINES = answers(None) | {
    200: {"description": "an answer or a problem a line", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}


def text(app: FastAPI) -> str:
    """The document as JSON."""
    return json.dumps(app.openapi(), ensure_ascii=False)


def install(app: FastAPI) -> None:
    """Have the document made when it is first requested, examples and all."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def page(app: FastAPI) -> str:
    """The document for people: every route, its parameters, and what it takes and gives, without any script."""
    document = app.openapi()
    routes = [
        {"path": path, "method": method.upper(), "heading": f"{method}-{path}".replace("/", "-").strip("-"), **operation}
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return render_docs(document=document, routes=routes, tags=TAGS, problems=PROBLEMS, usual=_usual, kind=_kind, shown=_shown)


def _usual(status: str, response: dict[str, Any]) -> bool:
    """Whether a response is one of the problems that many routes have, which the page says once."""
    return (int(status), response["description"]) in PROBLEMS


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words: its type or component, with bounds."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    words = [" or ".join(map(str, schema["enum"])) if "enum" in schema else str(schema.get("type", "any value"))]
    names = (("minimum", "from"), ("exclusiveMinimum", "over"), ("maximum", "to"))
    words += [f"{word} {schema[key]}" for key, word in names if key in schema]
    words += [f"of {schema['maxLength']} characters at most"] if "maxLength" in schema else []
    if schema.get("type") == "array":
        words = [f"list of {_kind(schema.get('items', {}))}"]
    return " ".join(words) + (f", {schema['default']} if not given" if schema.get("default") not in (None, "") else "")


def _shown(content: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Of each media type: its name, its schema in a few words, an example as text."""
    found = []
    for name, one in content.items():
        example = one.get("example", "")
        text = example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
        found.append((name, _kind(one.get("schema", {})), text))
    return found


def _document(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes, tags=TAGS)
    schemas = schema["components"]["schemas"]
    job = Job.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, found in {**job.pop("$defs"), "Job": job, "Problem": Problem.model_json_schema()}.items():
        if schemas.setdefault(name, found) != found:
            raise ValueError(f"two schemas are called {name}")
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
