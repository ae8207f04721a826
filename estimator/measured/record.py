"""A record of measured memory, whatever wrote it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

UNITS = {"bytes": 1, "byte": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_AMOUNT = re.compile(r"([\d,]*\.?\d+)\s*([A-Za-z]*)")


class Amount(NamedTuple):
    """Bytes as they were written: off by `within` at most, half of the last digit that was printed."""

    bytes: int
    within: int = 0


def amount(text: str, unit: str = "", decimal: bool = False) -> Amount:
    """'1.96 GiB', '812 MiB', '0 bytes'; `unit` where the text has none. Torch's and the engines' GB and MB are powers of two;
    `decimal` for those that are not. Raises `ValueError` if it is none."""
    match = _AMOUNT.fullmatch(text.strip())
    if not match or len(text) > 60:
        raise ValueError(f"{text[:60]!r} is no amount of memory")
    number, said = match[1].replace(",", ""), (match[2] or unit or "b").lower()
    scale = UNITS.get(said) or UNITS[said[0]]
    if decimal and said != "b" and "i" not in said:
        scale = 1000 ** (UNITS[said[0]].bit_length() // 10)
    digits = len(number.partition(".")[2])
    return Amount(int(Decimal(number) * scale), int(scale / 10**digits / 2) if scale > 1 else 0)


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured. `amounts` by quantity: allocated, reserved, used, capacity, free, requested, …; see `QUANTITIES`.

    `alive`: how many tensors of each size were alive at the highest, where the record has them. `others_bytes`: what others than
    this process hold of the GPU.
    """

    kind: str
    amounts: dict[str, Amount] = field(default_factory=dict)
    alive: Counter[int] | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    """What is no memory: cache_tokens."""


QUANTITIES = {
    "allocated": "peak of allocated memory",
    "reserved": "peak of reserved memory",
    "used": "used of the GPU",
    "weights": "weights",
    "activation": "activations",
    "non_torch": "outside torch",
    "cuda_graph": "CUDA graphs",
    "cache": "cache",
    "compute": "buffer of the graph",
}
"""What is lined up, in this order."""
