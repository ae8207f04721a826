"""pydantic's findings in our words: what was wrong, where, and what to write instead."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from estimator.errors import did_you_mean


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Every finding of a validation, one a line; an unknown key comes with the nearest known ones of `model`."""
    return "\n".join(_finding(item, model) for item in error.errors(include_url=False))


def _finding(item: Any, model: type[BaseModel] | None) -> str:
    place = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _keys(model, item["loc"][:-1])
        near = did_you_mean(str(item["loc"][-1]), known) or (f" Known keys are {', '.join(known)}." if known else "")
        return f"unknown key {place!r}.{near}"
    message = item["msg"].removeprefix("Value error, ")
    given = item.get("input")
    shown = f" (given {given!r})" if isinstance(given, str | int | float | bool) and len(repr(given)) < 60 else ""
    return f"{place}: {message}{shown}" if place else f"{message}{shown}"


def _keys(model: type[BaseModel] | None, path: tuple[Any, ...]) -> list[str]:
    """The keys that the mapping at `path` may have."""
    for part in path:
        field = model.model_fields.get(part) if model is not None else None
        annotation = field.annotation if field is not None else None
        model = next((t for t in _models(annotation)), None)
    return list(model.model_fields) if model is not None else []


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in getattr(annotation, "__args__", ()) for m in _models(arg)]
