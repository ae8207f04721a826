"""Bytes, counts and money as people write and read them. GB is 10^9 bytes, GiB is 2^30; never one for the other."""

from __future__ import annotations

import re
from decimal import Decimal

GB = 10**9
GIB = 2**30
MIB = 2**20
KIB = 2**10

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parse_bytes(text: str | int) -> int:
    """'24GB', '8 GiB', '512MiB' or a plain number of bytes; `ValueError` if it is none of these."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _BYTES.fullmatch(text.strip()) if isinstance(text, str) else None
    if not match:
        raise ValueError(f"{text!r} is not an amount of memory; write 24GB or 22.5GiB")
    unit = (match[2] or "b").lower()
    base = 1024 if unit.endswith("ib") else 1000
    return int(Decimal(match[1]) * base ** _POWERS[unit[:-1].rstrip("i")])


def parse_count(text: str | float) -> int:
    """'1e9', '2T', '300M' or a plain number; `ValueError` if it is none of these or not whole."""
    if isinstance(text, str):
        match = _COUNT.fullmatch(text.strip().replace("_", "").replace(",", ""))
        if not match:
            raise ValueError(f"{text!r} is not a count; write 1e9, 300M or 2T")
        value = Decimal(match[1]) * _THOUSANDS[match[2].lower()]
    elif isinstance(text, int | float) and not isinstance(text, bool):
        value = Decimal(str(text))
    else:
        raise ValueError(f"{text!r} is not a count; write 1e9, 300M or 2T")
    if not value.is_finite() or value != int(value):
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def gib(nbytes: int) -> str:
    """Bytes for people: '67.4 GiB'."""
    return f"{nbytes / GIB:.1f} GiB" if abs(nbytes) >= GIB / 10 else f"{nbytes / MIB:.1f} MiB"


def money(amount: Decimal) -> str:
    """An amount in cents, as text: '1234.50'."""
    return str(amount.quantize(Decimal("0.01")))
