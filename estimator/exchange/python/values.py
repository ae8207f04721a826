"""What the expressions of a script may come to, without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_TEXT, MOST_ITEMS, MOST_BITS, MOST_PARTS = 4_000, 2_000, 256, 5_000
"""Bounds of a text, a list, a whole number that is reckoned, and of all that one setting holds."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What only running the script would tell. `why`: the expression, or what hides it."""

    why: str


class Named(str):
    """What a name stands for that is imported: `torch.bfloat16`."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Function:
    """A function that the script defines."""

    node: ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False, slots=True)
class Class:
    """A class that the script defines: a dataclass's fields and their defaults."""

    name: str
    fields: dict[str, Any]


@dataclass(eq=False, slots=True)
class Made:
    """What a call made: `LoraConfig(r=8)`, by the name of what was called. What was set on it later is among its own."""

    name: str
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    line: int = 0
    of: Any = None
    """What a method was called on."""
    done: list[str] = field(default_factory=list)
    """Methods that were called on it."""
    hidden: list[str] = field(default_factory=list)
    """Mappings of settings that are not read: `**kwargs`."""

    @property
    def last(self) -> str:
        """The name without the module around it."""
        return self.name.rpartition(".")[2]

    def argument(self, name: str, place: int | None = None) -> Any:
        """An argument by its name, or its place; None where it is not given."""
        if name in self.keywords:
            return self.keywords[name]
        return self.positional[place] if place is not None and place < len(self.positional) else None


def plain(value: Any) -> bool:
    """Whether a value is data: nothing in it is unread, or an object, and it is not a maze of lists."""
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > MOST_PARTS:
            return False
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif one is not None and not isinstance(one, str | int | float):
            return False
    return True


def same(left: Any, right: Any) -> bool:
    """Whether two values are one, or the same word or number."""
    return left is right or (type(left) is type(right) and isinstance(left, str | int | float) and left == right)


def size(value: Any) -> int:
    """Steps that making a value counts for."""
    return len(value) // 20 if isinstance(value, str) else len(value) if isinstance(value, list | dict) else 0


def bounded(value: Any) -> Any:
    """The value, if it is no larger than settings are."""
    large = (
        (isinstance(value, str) and len(value) > LONGEST_TEXT)
        or (isinstance(value, list | dict) and len(value) > MOST_ITEMS)
        or (isinstance(value, int) and value.bit_length() > MOST_BITS)
    )
    return Unread("larger than any setting") if large else value
