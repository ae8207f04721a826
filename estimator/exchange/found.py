"""What a file says: parts of a job, and what has no place in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimator.contract.answer import AnswerPart
from estimator.contract.errors import InvalidJob

NO_FIELD = "a job has no field for it"


class LeftOut(AnswerPart):
    """A setting that may change what a GPU holds, and that the job does not have."""

    key: str
    """Its name in the file, with dots between a section and what is in it."""
    line: int | None = None
    """Where it stands in the file, from 1 on; null where that is not known, or where a default of the framework says it."""
    why: str
    meant: str | None = None
    """The known key that it is nearly: it may be misspelt."""

    def __str__(self) -> str:
        return f"{self.key}{f' (line {self.line})' if self.line else ''}: {self.why}"


class Assumed(AnswerPart):
    """What the file does not say, and the framework's own default does, or the reader."""

    key: str
    """The framework's setting, or what it is about."""
    value: Any = None
    why: str

    def __str__(self) -> str:
        shown = f" = {str(self.value).lower() if isinstance(self.value, bool) else self.value}" if self.value is not None else ""
        return f"{self.key}{shown}: {self.why}"


class Found(AnswerPart):
    """What a program's configuration says of a job."""

    framework: str = ""
    """Whose file it is."""
    version: str = ""
    """The release whose defaults were taken, where the file says none."""
    job: dict[str, Any]
    """The job, or its fields without a model, where the file names none."""
    left_out: list[LeftOut] = []
    """Settings that the job does not have, and that may matter."""
    assumed: list[Assumed] = []
    """What the file leaves unsaid, and how it was filled in."""


class Settings:
    """A file's settings, of which each is read once; what is left was not understood."""

    def __init__(self, given: Any, where: str):
        if not isinstance(given, Mapping):
            raise InvalidJob(f"is no mapping of settings but {type(given).__name__}", where)
        self.given, self.where = dict(given), where

    def take(self, name: str, usual: Any = None) -> Any:
        """A setting; what is `auto`, or not there, is as usual."""
        value = self.given.pop(name, usual)
        return usual if value in ("auto", None) else value

    def number(self, name: str, usual: int = 1) -> int:
        """A setting that counts something."""
        value = self.take(name, usual)
        if isinstance(value, str) and value.lstrip("-").isdigit():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidJob(f"{value!r} is no whole number", f"{self.where}.{name}")
        return value

    def amount(self, name: str) -> float:
        """A setting that is some number; 0 where it is not there."""
        value = self.take(name, 0)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise InvalidJob(f"{value!r} is no number", f"{self.where}.{name}") from None

    def yes(self, name: str, usual: bool = False) -> bool:
        """A setting that is on or off, in whatever words."""
        value = self.take(name, usual)
        return value.lower() in ("true", "yes", "1", "on") if isinstance(value, str) else bool(value)

    def part(self, name: str) -> Settings:
        """Settings within a setting; none where it is not there."""
        return Settings(self.take(name, {}), f"{self.where}.{name}")

    def left(self, known: frozenset[str] = frozenset()) -> Iterator[LeftOut]:
        """What was not read, without what is `known` to matter not."""
        for name, value in self.given.items():
            if name not in known:
                yield LeftOut(key=f"{self.where}.{name}", why=f"{value}: {NO_FIELD}")


def without(fields: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are not as usual."""
    return {name: value for name, value in fields.items() if value != usual.get(name)}


def field_of(job: Mapping[str, Any], path: str) -> Any:
    """A field of a job as a mapping, by its dotted name; None where it is not there."""
    part: Any = job
    for name in path.split("."):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def with_field(job: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The job with a field set, by its dotted name; None takes it away."""
    name, _, inner = path.partition(".")
    if inner:
        return {**job, name: with_field(job.get(name) or {}, inner, value)}
    return {**job, name: value} if value is not None else {key: kept for key, kept in job.items() if key != name}
