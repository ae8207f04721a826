"""The JSON Schema of a file of model_specs/: what a model may say, with the keys of its own family."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import SerializeAsAny
from pydantic.fields import FieldInfo

from estimator.families import FAMILIES, spec_class
from estimator.specs.published import PublishedModel

PLACE = "#/$defs/{model}"


def model_schema() -> dict[str, Any]:
    """The JSON Schema of one file; `architecture` is one of the families', told by its `model_type`."""
    schema = PublishedModel.model_json_schema(ref_template=PLACE)
    shared: dict[str, Any] = schema["$defs"]
    families = []
    for model_type in FAMILIES:
        own = _family(model_type)
        shared |= own.pop("$defs", {})
        shared[f"architecture of {model_type}"] = own
        families.append({"$ref": PLACE.format(model=f"architecture of {model_type}")})
    families.append(_other())
    told = "The model's sizes, under the names of its config.json."
    schema["properties"]["architecture"] = {"oneOf": families, "description": told}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _other() -> dict[str, Any]:
    """Any other config.json, as it is."""
    kind = {"type": "string", "not": {"enum": list(FAMILIES)}}
    return {"type": "object", "properties": {"model_type": kind}, "required": ["model_type"]}


def _family(model_type: str) -> dict[str, Any]:
    """The schema of one architecture: a field goes by either of its two names, and what follows from other fields may be left
    out."""
    family = spec_class(model_type)
    schema = family.model_json_schema(by_alias=False, ref_template=PLACE)
    properties: dict[str, Any] = schema["properties"]
    properties["model_type"] = {"const": model_type}
    for name, field in family.model_fields.items():
        if _of_its_own_family(field):
            kinds: Any = "object" if field.is_required() else ["object", "null"]
            properties[name] = {"type": kinds, "properties": {"model_type": {"type": "string"}}}
    aliases = {name: field.alias for name, field in family.model_fields.items() if field.alias not in (None, name)}
    properties |= {alias: properties[name] for name, alias in aliases.items() if alias}
    properties |= {name: {} for name in sorted(family.keys() - properties.keys())}  # other ways to say what a field says
    needed = set(schema["required"]) - family.follows(1024, 8).keys() - family.made
    schema["required"] = sorted(needed - aliases.keys())
    either = [{"anyOf": [{"required": [name]}, {"required": [alias]}]} for name, alias in aliases.items() if name in needed]
    return schema | ({"allOf": either} if either else {})


def _of_its_own_family(field: FieldInfo) -> bool:
    """Whether a field is a part of the model, or such a part or nothing."""
    notes = [*field.metadata, *(note for kind in get_args(field.annotation) for note in getattr(kind, "__metadata__", ()))]
    return any(isinstance(note, SerializeAsAny) for note in notes)  # type: ignore[misc]
