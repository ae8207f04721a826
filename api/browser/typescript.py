"""TypeScript's types of questions and answers, made of their JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from estimator.contract.answer import Answer
from estimator.contract.job import Job
from estimator.planner.headline_answer import Fit

QUESTIONS: dict[str, type[BaseModel]] = {"Job": Job}
ANSWERS: dict[str, type[BaseModel]] = {"Answer": Answer, "Fit": Fit}
"""What is declared: of a question what may be written, of an answer what is there."""
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}

Schema = Mapping[str, Any]


def declarations() -> str:
    """The text of types.d.mts."""
    declared: dict[str, str] = {}
    written = {name: kind.model_json_schema() for name, kind in QUESTIONS.items()}
    read = {name: kind.model_json_schema(mode="serialization") for name, kind in ANSWERS.items()}
    for name, schema in (written | read).items():
        for part, content in schema.get("$defs", {}).items():
            _declare(declared, f"{name}{part}", content, name)
        _declare(declared, name, schema, name)
    return "// Made of the JSON Schemas of questions and answers.\n\n" + "\n".join(declared.values())


def _declare(declared: dict[str, str], name: str, schema: Schema, root: str) -> None:
    declared[name] = f"{_comment(schema)}export type {name} = {_type(schema, root)};\n"


def _type(schema: Schema | bool, root: str, depth: int = 0) -> str:
    """A schema as a type; `root`: the name before those of its definitions."""
    if isinstance(schema, bool) or not schema:
        return "unknown"
    if "$ref" in schema:
        return f"{root}{str(schema['$ref']).rpartition('/')[2]}"
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(f"({_type(one, root, depth)})" for one in schema[several]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(PLAIN.get(one, "unknown") for one in kind)
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(_type(one, root, depth) for one in schema['prefixItems'])}]"
        return f"({_type(schema.get('items', {}), root, depth)})[]"
    if kind == "object":
        return _object(schema, root, depth)
    return PLAIN.get(str(kind), "unknown")


def _object(schema: Schema, root: str, depth: int) -> str:
    properties, needed = schema.get("properties"), schema.get("required", ())
    if properties is None:
        return f"Record<string, {_type(schema.get('additionalProperties', {}), root, depth)}>"
    indent = "  " * (depth + 1)
    lines = [
        f"{_comment(one, indent)}{indent}{json.dumps(name)}{'' if name in needed else '?'}: {_type(one, root, depth + 1)};\n"
        for name, one in properties.items()
    ]
    return "{\n" + "".join(lines) + "  " * depth + "}"


def _comment(schema: Schema | bool, indent: str = "") -> str:
    said = "" if isinstance(schema, bool) else str(schema.get("description", ""))
    text = " ".join(said.split()).replace("*/", "* /")
    return f"{indent}/** {text} */\n" if text else ""
