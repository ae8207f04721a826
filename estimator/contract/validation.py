"""pydantic's findings in our words: what was wrong, where, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from estimator.contract.errors import InvalidValue, UnknownKey, did_you_mean

WANTED = {"string_type": "text", "int_type": "a whole number", "list_type": "a list", "dict_type": "a mapping"}
"""What to write where the kind is wrong, by pydantic's name for the error."""

MOST_FINDINGS = 50
"""What is said of one validation, each with the nearest known key."""

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], content: Any, where: str) -> Model:
    """Content as a model of pydantic's; `UnknownKey` or `InvalidValue` with every finding, and where it stands."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        unknown = all(item["type"] == "extra_forbidden" for item in error.errors(include_url=False))
        raise (UnknownKey if unknown else InvalidValue)(explain(error, model), where) from None


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """The findings of a validation, one a line; an unknown key comes with the nearest known ones of `model`."""
    wanted: dict[tuple[Any, ...], list[str]] = {}
    said: dict[tuple[Any, ...], list[str]] = {}
    given: dict[tuple[Any, ...], Any] = {}
    findings = error.errors(include_url=False)
    for item in findings[:MOST_FINDINGS]:
        keys = len(item["loc"]) - (item["type"] == "extra_forbidden")  # whose last part is a key, whatever it looks like
        place = tuple(part for number, part in enumerate(item["loc"]) if number >= keys or not _is_branch(part))
        given.setdefault(place, item.get("input"))
        kind = _kind(item, model)
        if kind:
            wanted.setdefault(place, []).append(kind)
        else:
            said.setdefault(place, []).append(_finding(item, model, place))
    for place, kinds in wanted.items():
        if not any(deeper[: len(place)] == place for deeper in said):  # else another branch of a union came nearer
            said[place] = [f"{_path(place)}: write {' or '.join(kinds)}{_meaning(model, place)}{_shown(given[place])}"]
    more = [f"and {len(findings) - MOST_FINDINGS:,} more"] if len(findings) > MOST_FINDINGS else []
    return "\n".join([*(line for lines in said.values() for line in lines), *more])


def _is_branch(part: str | int) -> bool:
    """Whether a part of a place is no key but the branch of a union, as pydantic names it."""
    return isinstance(part, str) and (part == "str" or "[" in part)


def _kind(item: Any, model: type[BaseModel] | None) -> str:
    """What a value should have been, if it was of another kind altogether."""
    if item["type"] == "literal_error":
        return _one_of(str(item["ctx"]["expected"]), item.get("input"))
    if item["type"] == "model_type":
        return f"a mapping with keys {', '.join(_keys(model, item['loc']))}"
    return WANTED.get(item["type"], "")


FEW = 12
"""Values of which all are named."""


def _one_of(expected: str, given: Any) -> str:
    """The values that there are; of many the nearest to what was given, if any is near."""
    values = re.findall("'([^']*)'", expected)
    near = get_close_matches(str(given), values, n=4, cutoff=0.5) if len(values) > FEW else []
    return f"{' or '.join(map(repr, near))}, or another of {len(values)}" if near else expected


def _finding(item: Any, model: type[BaseModel] | None, place: tuple[Any, ...]) -> str:
    if item["type"] == "extra_forbidden":
        known = _keys(model, item["loc"][:-1])
        within = list(dict.fromkeys(_within(_model_at(model, item["loc"][:-1]), str(place[-1]), [*place[:-1]])))
        near = f" Did you mean {' or '.join(map(repr, within))}?" if within else did_you_mean(str(place[-1]), known)
        near = near or (f" Known keys are {', '.join(known)}." if known else "")
        return f"unknown key {_path(place)!r}.{near}"
    if item["type"] == "union_tag_invalid":
        known = item["ctx"]["expected_tags"].replace("type[", "").replace("]", "")
        return f"{_path((*place, 'type'))}: write {known.replace(', ', ' or ')}{_shown(item['input']['type'])}"
    message = (
        item["msg"].removeprefix("Value error, ").replace("Input should be", "should be").replace("Field required", "is missing")
    )
    shown = "" if item["type"] == "missing" else _shown(item.get("input"))
    return f"{_path(place)}: {message}{shown}" if place else f"{message}{shown}"


def _path(place: tuple[Any, ...]) -> str:
    return ".".join(map(str, place))


def _shown(given: Any) -> str:
    return f" (given {given!r})" if isinstance(given, str | int | float | bool) and len(repr(given)) < 60 else ""


def _meaning(model: type[BaseModel] | None, place: tuple[Any, ...]) -> str:
    """What the field at a place is for, where it says so."""
    parent = _model_at(model, place[:-1])
    field = parent.model_fields.get(str(place[-1])) if parent is not None and place else None
    return f": {field.description}" if field is not None and field.description else ""


def _within(model: type[BaseModel] | None, name: str, path: list[Any]) -> Iterator[str]:
    """The dotted names of the fields of this name that the mappings in a model have."""
    for key, field in () if model is None else model.model_fields.items():
        for part in _models(field.annotation):
            if name in part.model_fields:
                yield _path((*path, key, name))


def _keys(model: type[BaseModel] | None, path: tuple[Any, ...]) -> list[str]:
    """The keys that the mapping at `path` may have."""
    found = _model_at(model, path)
    return list(found.model_fields) if found is not None else []


def _model_at(model: type[BaseModel] | None, path: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model of the mapping at a place, which may name the branch of a union by the model's `type`."""
    among = [] if model is None else [model]
    for part in path:
        if _is_branch(part):
            among = [m for m in among if part == f"type[{_type(m)}]"] or among
        else:
            field = among[0].model_fields.get(part) if among else None
            among = [] if field is None else _models(field.annotation)
    return among[0] if among else None


def _type(model: type[BaseModel]) -> str:
    """The `type` that a mapping must have to be this model, if it must have one."""
    field = model.model_fields.get("type")
    return "" if field is None else str(field.annotation.__args__[0])  # type: ignore[union-attr]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in getattr(annotation, "__args__", ()) for m in _models(arg)]
