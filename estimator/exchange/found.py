"""What a file says: parts of a job, and what has no place in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimator.contract.answer import AnswerPart
from estimator.contract.errors import InvalidJob


class Found(AnswerPart):
    """What a program's configuration says of a job."""

    job: dict[str, Any]
    """Fields of the job, without a model."""
    left_out: list[str]
    """Settings that a job has no field for, and that may matter."""


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

    def left(self, known: frozenset[str] = frozenset()) -> Iterator[str]:
        """What was not read, without what is `known` to matter not."""
        for name, value in self.given.items():
            if name not in known:
                yield f"{self.where}.{name}: {value}"


def without(fields: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are not as usual."""
    return {name: value for name, value in fields.items() if value != usual.get(name)}
