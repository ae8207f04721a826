"""The published schemas as validators: those of docs/schema/, and those that the OpenAPI document gives to routes."""

from __future__ import annotations

import json
from functools import cache

from jsonschema import Draft202012Validator

from api.app import app
from tests.jobs import ROOT

FORMATS = Draft202012Validator.FORMAT_CHECKER


@cache
def schema(name: str) -> Draft202012Validator:
    """A file of docs/schema/."""
    content = json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(content)
    return Draft202012Validator(content, format_checker=FORMATS)


@cache
def of_route(method: str, path: str, status: int = 200) -> Draft202012Validator:
    """What the OpenAPI document says that a route answers with."""
    document = app.openapi()
    said = document["paths"][path][method.lower()]["responses"][str(status)]["content"]
    answer = said.get("application/json") or next(iter(said.values()))
    content = {**answer["schema"], "components": document["components"]}
    Draft202012Validator.check_schema(content)
    return Draft202012Validator(content, format_checker=FORMATS)
