"""A framework's defaults at an earlier release: what was another then than it is today, by the day on which it changed.

A release is said by its number, or by a day at which it was the newest: 0.9.1, 2024-11, 2024-11-25.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import InvalidValue

_DAY = re.compile(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?")
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.-]?(?:dev|rc|post|a|b)\d*)?")
LONGEST = 40
"""Characters of a release that is read."""


class Default(BaseModel):
    """What a framework does where a file says nothing. `why` is what it means for memory; without it, nobody needs to be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: Any
    why: str = ""


class Earlier(BaseModel):
    """Defaults that held in releases before a day."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    until: date
    source: str
    defaults: dict[str, Default]


def day_of(release: str, whose: str, releases: Mapping[str, date]) -> date | None:
    """The day that a release of a framework stands for; None for one that is newer than all that are known here.

    A number that is not known is taken for the newest known one below it. Raises `InvalidValue` for what is neither.
    """
    text = release.strip()[:LONGEST]
    if (found := _DAY.fullmatch(text)) is not None:
        try:
            return date(int(found[1]), int(found[2] or 1), int(found[3] or 1))
        except ValueError:
            raise InvalidValue(f"{text!r} is no day: write one as 2024-11-25", "release") from None
    numbers = _NUMBERS.fullmatch(text)
    if numbers is None or not releases:
        known = f"one of {', '.join(releases)}, or a" if releases else "a"
        raise InvalidValue(f"{text!r} is no release of {whose} that is known here: write {known} day such as 2024-11", "release")
    asked = _parts(numbers[1])
    ordered = sorted(releases, key=_parts)
    if asked > _parts(ordered[-1]):
        return None
    return releases[max((one for one in ordered if _parts(one) <= asked), key=_parts, default=ordered[0])]


def earlier(changes: Sequence[Earlier], key: str, day: date | None) -> Default | None:
    """What a key was by default at a day; None where it was what it is today."""
    known = [one for one in changes if day is not None and day < one.until and key in one.defaults]
    return min(known, key=lambda one: one.until).defaults[key] if known else None


def _parts(number: str) -> tuple[int, ...]:
    return tuple(map(int, number.split(".")))
