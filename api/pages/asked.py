"""What a page was asked: the fields of its address, or of a form that was sent to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.facts.spelling import shown

Items = list[tuple[str, str]]
MOST_DIGITS = 8


@dataclass(frozen=True)
class Asked:
    """Fields that have a value, in their order."""

    items: Items

    def get(self, name: str, usual: str = "") -> str:
        """A field's value, without spaces around it; of several the first."""
        return next((value.strip() for key, value in self.items if key == name), usual)

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value.strip() for key, value in self.items if key == name]

    def without(self, *names: str) -> Items:
        """The fields but some, as a job has them; those of a second job (`b.…`) are not among them."""
        return [(key, value) for key, value in self.items if key not in names and not key.startswith("b.")]

    def numbers(self, *names: str) -> dict[str, Any]:
        """Those of some fields that were given, as whole numbers. Raises `InvalidValue`."""
        found = {name: in_full(self.get(name)) for name in names if self.get(name)}
        for name, text in found.items():
            if not (text.isdecimal() and text.isascii() and len(text) <= MOST_DIGITS):
                raise InvalidValue(f"{shown(text)} is no whole number: write one such as 4096", name)
        return {name: int(text) for name, text in found.items()}


def in_full(text: str) -> str:
    """A length in digits: 8k is 8192; anything else as it is."""
    thousands = text[:-1]
    return (
        str(int(thousands) * 1024) if text[-1:] in ("k", "K") and thousands.isdecimal() and len(thousands) < MOST_DIGITS else text
    )


def asked(items: Items) -> Asked:
    """Fields without those that are empty."""
    return Asked([(name, value) for name, value in items if value.strip()])
