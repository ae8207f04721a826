"""Amounts as people write what they have: 24h and 3d, $50 and $2/h, 24GB..80GB. Without a unit none is understood."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from estimator.contract.errors import InvalidValue
from estimator.contract.units import GB, parse_bytes
from estimator.facts.spelling import shown

HOURS = {"min": Decimal(1) / 60, "m": Decimal(1) / 60, "h": Decimal(1), "d": Decimal(24), "w": Decimal(168)}
"""Hours of each unit of time, by its first letter or by its name's."""
SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(min|m|h|d|w)[a-z]*", re.IGNORECASE)
_MONEY = re.compile(r"([$€£¥])?\s*(\d+(?:\.\d+)?)\s*([a-z]{3})?\s*(?:(?:/|per)\s*(h)(?:our|r)?)?", re.IGNORECASE)


_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)[a-z]*", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:requests?|rps|qps)?\s*(?:(?:/|per|a)\s*(s|m|h)[a-z]*)?", re.IGNORECASE)
_PER = {"s": 1, "m": 60, "h": 3600}
"""Seconds of the unit that a rate is given by."""


class Money(NamedTuple):
    """An amount of money: of a whole run, or of an hour of all its GPUs."""

    amount: Decimal
    currency: str
    hourly: bool


class Memory(NamedTuple):
    """Amounts of memory that a card may be sold with, GB as cards are sold. `most` None: no bound."""

    least: float
    most: float | None


def hours(text: str) -> float:
    """'24h', '3 days', '90min' in hours. Raises `InvalidValue`."""
    found = _TIME.fullmatch(text.strip())
    value = float(Decimal(found[1]) * HOURS[found[2].lower()]) if found else 0.0
    if not value:
        unit = " has no unit:" if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else " is no time:"
        raise InvalidValue(f"{shown(text)}{unit} write 24h, 3d or 90min", "within")
    return value


def seconds(text: str, where: str) -> float:
    """'500ms', '2s' in seconds. Raises `InvalidValue`."""
    found = _SECONDS.fullmatch(text.strip())
    value = float(found[1]) * (1e-3 if found[2].lower() == "ms" else 1.0) if found else 0.0
    if not value:
        unit = " has no unit:" if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else " is no time:"
        raise InvalidValue(f"{shown(text)}{unit} write 500ms or 2s", where)
    return value


def rate(text: str) -> float:
    """'10', '0.5/s', '600/min', '5 per second' as requests a second. Raises `InvalidValue`."""
    found = _RATE.fullmatch(text.strip())
    value = float(found[1]) / _PER[(found[2] or "s")[0].lower()] if found else 0.0
    if not value:
        raise InvalidValue(f"{shown(text)} is no number of requests: write 10, 0.5/s or 600/min", "requests")
    return value


def money(text: str) -> Money:
    """'$50', '50 EUR', '$2/h'. Raises `InvalidValue`."""
    found = _MONEY.fullmatch(text.strip())
    if found and not (found[1] or found[3]):
        raise InvalidValue(f"{shown(text)} has no currency: write $50 or '50 EUR' for the whole run, $2/h for an hour", "under")
    if found is None or (found[1] and found[3]) or not Decimal(found[2]):
        raise InvalidValue(
            f"{shown(text)} is no amount of money: write $50 or '50 EUR' for the whole run, $2/h for an hour", "under"
        )
    return Money(Decimal(found[2]), SIGNS[found[1]] if found[1] else found[3].upper(), bool(found[4]))


def memory(text: str) -> Memory:
    """'24GB', '24GB..80GB', '..48GB', '80GB..'. Raises `InvalidValue`."""
    first, dots, last = (part.strip() for part in text.partition(".."))
    try:
        low, high = (parse_bytes(part) / GB if part else None for part in (first, last))
    except ValueError as error:
        raise InvalidValue(f"{error}; or 24GB..80GB for all cards between", "memory") from None
    if low is None and high is None:
        raise InvalidValue(f"{shown(text)} says no amount: write 24GB, 24GB..80GB, ..48GB or 80GB..", "memory")
    most = high if dots else low
    if most is not None and low is not None and most < low:
        raise InvalidValue(f"{shown(text)} is an empty range: write the smaller amount first", "memory")
    return Memory(low or 0.0, most)
