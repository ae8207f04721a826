"""The fields of a job, walked, so that none can be forgotten, and values drawn for them by what they may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from estimator.contract.job import Job
from tests.jobs import table

Own = Callable[["Drawing", dict[str, Any]], Any]
"""Draws the value of a field that depends on the model, or on what else is drawn; gets its part's fields so far."""
NOTHING = object()
"""What is drawn where a field is left out after all."""


def members(annotation: Any) -> Iterator[Any]:
    """What a field may be: models, literals and plain types, of unions each."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from members(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from members(each)
    elif annotation is not type(None):
        yield annotation


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for each in members(annotation):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each
        elif get_origin(each) is not Literal:
            for inner in get_args(each):
                yield from _models(inner)


@cache
def parts() -> tuple[type[BaseModel], ...]:
    """Every model that a job is made of, those apart that only left-out fields have."""
    found: dict[type[BaseModel], None] = {}
    waiting: list[type[BaseModel]] = [Job]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found[part] = None
            for name, each in part.model_fields.items():
                if not ((said := rule(part, name)) and said.left_out):
                    waiting += _models(each.annotation)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a field is drawn. `rates`: how often, by mode; `values`: of what, where its type does not say; `unplayed`: those of
    its values that no judge can play; `left_out`: why it is not drawn at all."""

    rate: float = 0.1
    rates: dict[str, float] = field(default_factory=dict)
    values: tuple[Any, ...] | None = None
    unplayed: tuple[Any, ...] = ()
    left_out: str | None = None


@cache
def rules() -> dict[str, dict[str, Rule]]:
    """The table, by the name of a model and of its field."""
    return {part: {name: _rule(said) for name, said in fields.items()} for part, fields in table("drawn_fields").items()}


def _rule(said: dict[str, Any]) -> Rule:
    own = ("rate", "values", "unplayed", "left_out")
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in said.items() if name in own
    }
    return Rule(**given, rates={name: rate for name, rate in said.items() if name not in own})


def rule(part: type[BaseModel], name: str) -> Rule | None:
    """The rule of a field, which a model may have from the one that it extends."""
    return next((rules()[c.__name__][name] for c in part.__mro__ if name in rules().get(c.__name__, {})), None)


def own(part: type[BaseModel], name: str, known: dict[str, Own]) -> Own | None:
    """What draws a field by more than its type, if anything does."""
    return next((known[f"{c.__name__}.{name}"] for c in part.__mro__ if f"{c.__name__}.{name}" in known), None)


@dataclass
class Drawing:
    """One job in the making. `mode`: how it is spread, which decides how often a field is given; `playable`: without values that
    no judge can play."""

    rng: random.Random
    mode: str
    playable: bool
    model: dict[str, Any]
    spec: Any
    known: dict[str, Own]
    degrees: dict[str, Any] = field(default_factory=dict)

    def one(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def some(self, values: Any, most: int = 3) -> list[Any]:
        """One to `most` of them, in their order."""
        every = list(dict.fromkeys(values))
        chosen = self.rng.sample(range(len(every)), min(len(every), self.rng.randint(1, most)))
        return [every[i] for i in sorted(chosen)]

    def part(self, part: type[BaseModel]) -> dict[str, Any]:
        """A part of a job as a mapping, with some of its fields."""
        made: dict[str, Any] = {}
        if part.__name__ == "CheckpointForm":
            name = self.one(*part.model_fields)
            return {name: self.value(part, name, made)}
        for name, each in part.model_fields.items():
            said = rule(part, name) or Rule()
            if said.left_out or not (each.is_required() or self.rng.random() < said.rates.get(self.mode, said.rate)):
                continue
            value = self.value(part, name, made)
            if value is not NOTHING:
                made[name] = value
        return made

    def value(self, part: type[BaseModel], name: str, made: dict[str, Any]) -> Any:
        """A value of a field."""
        if drawn := own(part, name, self.known):
            return drawn(self, made)
        said = rule(part, name) or Rule()
        if said.values is not None:
            values = [value for value in said.values if not (self.playable and value in said.unplayed)]
        else:
            values = [value for value in choices(part.model_fields[name].annotation) if _is_open(value, said, self.playable)]
        chosen = self.one(*values)
        return self.part(chosen) if isinstance(chosen, type) else chosen


def _is_open(value: Any, said: Rule, playable: bool) -> bool:
    name = branch_name(value) if isinstance(value, type) else value
    return not (playable and name in said.unplayed)


def branch_name(part: type[BaseModel]) -> str:
    """What a model is called in the table: by its `type`, where it has one, else by its own name."""
    literal = part.model_fields.get("type")
    return str(get_args(literal.annotation)[0]) if literal and get_args(literal.annotation) else part.__name__


def choices(annotation: Any) -> list[Any]:
    """The values of literals and truths, and the models, that a field may have; others must be in the table."""
    found: list[Any] = []
    for each in members(annotation):
        if get_origin(each) is Literal:
            found += get_args(each)
        elif each is bool:
            found += [False, True]
        elif isinstance(each, type) and issubclass(each, BaseModel):
            found.append(each)
    return found
