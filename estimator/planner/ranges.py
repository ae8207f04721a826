"""Values of a job's fields as people write them: lists (1,2,4), ranges that double (1k..128k, or 1k-128k), ranges in steps
(8..64:8)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from pydantic import BaseModel

from estimator.contract.errors import InvalidValue
from estimator.contract.job import Job
from estimator.contract.reading import parse_yaml
from estimator.facts.spelling import shown
from estimator.hardware.parse import read_hardware
from estimator.planner.numbers import place

MOST = 10_000
"""Values of one field, and combinations of all, that are tried at most."""
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)([kmgKMG]?)")
_RANGE = re.compile(r"([^.:]*(?:\.\d+)?[^.:]*)\.\.([^:]*?)(?::(.*))?")
_DASHED = re.compile(r"(\d+(?:\.\d+)?[kmgKMG]?)\s*[-–]\s*(\d+(?:\.\d+)?[kmgKMG]?(?::.*)?)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_WORDS = {"null": None, "true": True, "false": False}


class Values(NamedTuple):
    """A field by its dotted name, and its values: as they are shown, and as the job takes them."""

    field: str
    shown: tuple[Any, ...]
    taken: tuple[Any, ...]


def values(job: Job, field: str, asked: str | Iterable[Any]) -> Values:
    """The values of a field that were asked for, each once; `hardware` takes phrases such as 2x24GB. Raises `InvalidJob` for a
    field that a job does not have, and for what is no value, no range, or more than `MOST` of them."""
    part, last = place(job, field)
    texts = list(_split(asked)) if isinstance(asked, str) else list(asked)
    if not texts:
        raise InvalidValue("has no values: write one, several with commas between, or a range such as 1k..128k", field)
    kinds = _kinds(part, last)
    named = field == "hardware.gpu" or not kinds & {"integer", "number"}  # 4090 is a card's name, too
    thousand = None if named else 1000 if "string" in kinds else 1024
    found: list[Any] = []
    for text in texts:
        found += _read(field, text.strip(), thousand, MOST - len(found)) if isinstance(text, str) else [text]
    seen: list[Any] = []
    for value in found:
        if value not in seen or any(value == one and type(value) is not type(one) for one in seen):
            seen.append(value)
    return Values(field, tuple(seen), tuple(_taken(field, value) for value in seen))


def _kinds(part: BaseModel, last: str) -> set[str]:
    """The types that a field takes, as JSON Schema calls them: a length is an integer, an amount of tokens may be text, too."""
    return set(_types(type(part).model_json_schema(mode="validation")["properties"][last]))


def _types(schema: dict[str, Any]) -> Iterator[str]:
    for one in schema.get("anyOf", []):
        yield from _types(one)
    kind = schema.get("type", [])
    yield from [kind] if isinstance(kind, str) else kind


def _split(text: str) -> Iterator[str]:
    """What stands between commas that are in no brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip() or start:
        yield text[start:]


def _read(field: str, text: str, thousand: int | None, most: int) -> Sequence[Any]:
    """A value, or those of a range. `thousand`: what k stands for; None where the field is no number."""
    if not text:
        raise InvalidValue("has an empty value: write one, several with commas between, or a range such as 1k..128k", field)
    if text in _WORDS:
        return [_WORDS[text]]
    if text[0] in "{[":
        return [parse_yaml(text, field)]
    if thousand is None:
        return [text]
    match = _RANGE.fullmatch(_DASHED.sub(r"\1..\2", text) if _DASHED.fullmatch(text) else text)
    if match is None:
        number = _number(text, thousand)
        return [text if number is None else _plain(number)]
    first, last, step = (None if part is None else _number(part.strip(), thousand) for part in match.groups())
    if first is None or last is None or (match[3] is not None and (step is None or step <= 0)):
        raise InvalidValue(f"{shown(text)} is no range: write 1k..128k, which doubles, or 8..64:8, in steps", field)
    if last < first:
        raise InvalidValue(f"{shown(text)} is an empty range: write the smaller end first", field)
    if step is None and first <= 0:
        raise InvalidValue(
            f"{shown(text)} doubles from {first}, which does not grow: write steps, such as {first}..{last}:1", field
        )
    if step is not None and (last - first) // step >= most:
        raise InvalidValue(
            f"{shown(text)} has {(last - first) // step + 1:,} values, more than {MOST:,}: take larger steps", field
        )
    return list(_ranged(first, last, step))


def _ranged(first: int | Decimal, last: int | Decimal, step: int | Decimal | None) -> Iterator[int | float]:
    value = first
    while value <= last:
        yield _plain(value)
        value = value * 2 if step is None else value + step


def _plain(number: int | Decimal) -> int | float:
    return number if isinstance(number, int) else float(number)


def _number(text: str, thousand: int) -> int | Decimal | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    number = Decimal(match[1]) * thousand ** _POWERS[match[2].lower()]
    return int(number) if number == int(number) and ("." not in match[1] or match[2]) else number


def _taken(field: str, value: Any) -> Any:
    """A value as the job takes it."""
    if field == "hardware" and isinstance(value, str):
        return read_hardware(value).hardware.model_dump(exclude_defaults=True)
    return value
