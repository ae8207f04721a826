"""A machine without a GPU, as people write it ('64GB RAM', 'no gpu, 32GB', 'EPYC 9654 with 768GB'): its RAM, and nothing else."""

from __future__ import annotations

import re
from itertools import pairwise

from pydantic import ValidationError

from estimator.contract.errors import InvalidValue, NotModelled
from estimator.contract.job import Hardware
from estimator.contract.validation import explain
from estimator.facts.spelling import shown
from estimator.hardware import naming
from estimator.hardware.naming import HOSTS, memory

CPUS = frozenset(
    {
        "cpu",
        "cpus",
        "ryzen",
        "threadripper",
        "epyc",
        "xeon",
        "graviton",
        "altra",
        "athlon",
        "celeron",
        "pentium",
        "raspberry",
        "i3",
        "i5",
        "i7",
        "i9",
    }
)
"""Words for processors: one among them names no accelerator."""
CORE_ULTRA = ("core", "ultra")
"""Words for Intel's processors that are also Apple's, where they do not follow each other."""
MODULES = 64
"""Memory modules of a machine, at most: 7950X 64GB is a processor and its RAM."""
WITHOUT = frozenset({"no", "without", "zero", "0"})
"""Words that say, before `gpu`, that there is none."""
RAM = frozenset({"ram", "ddr3", "ddr4", "ddr5"})
"""Words for a host's memory."""
_RAM = r"(?P<amount>\d{1,6}(?:\.\d{1,3})?) ?G(?P<binary>i?)B?(?: (?:of|system|host|DDR[345]))* (?:RAM|DDR[345])"
_BESIDE = re.compile(rf"(?P<left>.*?)(?:,| and| with| plus| ?[+&])? {_RAM}", re.IGNORECASE)
_BEFORE = re.compile(rf"{_RAM}(?:,| and| with| plus| ?[+&]) (?P<left>.*)", re.IGNORECASE)
EXAMPLE = "write 'cpu 64GB RAM'"


def read_ram(text: str, parts: list[str]) -> Hardware | None:
    """The machine that a phrase means which names no accelerator, by its RAM; None where it speaks of no CPU and no RAM. `parts`:
    its words.

    Which CPU it is changes no byte. Raises `NotModelled` for a card beside it and for several machines, `InvalidValue` where it
    does not say how much RAM, and `UnknownHardware` where one of the words may be several accelerators.
    """
    lacks = any(part in WITHOUT and after in ("gpu", "gpus") for part, after in pairwise(parts))
    if not lacks and (CPUS | RAM).isdisjoint(parts) and CORE_ULTRA not in pairwise(parts):
        return None
    cards = [found for part in parts if not memory(part) and (found := naming.card([part]))]
    if cards:
        raise NotModelled(
            f"{shown(text)} is a card with its host: write the card alone, {cards[0]}, or with how much RAM, "
            f"'{cards[0]} and 64GB RAM'",
            "hardware",
        )
    if not naming.MACS.keys().isdisjoint(parts):
        return None
    if any(part in HOSTS and part.endswith("s") for part in parts):
        raise NotModelled(f"{shown(text)} is several machines without a GPU: ask about one of them, {EXAMPLE}", "hardware")
    at = [i for i, part in enumerate(parts) if memory(part)]
    if len(at) != 1 or parts[at[0] + 1 : at[0] + 2] == ["x"]:
        how = "does not say how much RAM" if not at else "does not say plainly how much RAM"
        raise InvalidValue(f"{shown(text)} is a CPU, and {how}: {EXAMPLE}", "hardware")
    try:
        return Hardware(ram=_amount(parts, at[0]))
    except ValidationError as error:
        raise InvalidValue(explain(error), "hardware") from None


def beside_ram(text: str) -> tuple[str, str] | None:
    """What is left of a phrase without the amount of RAM that it ends in, or begins with, and that amount: '4090 and 64GB of RAM'
    is 4090 and 64GB. None where it says none so, or nothing else."""
    found = _BESIDE.fullmatch(text) or _BEFORE.fullmatch(text)
    left = found["left"].strip() if found else ""
    return (left, f"{found['amount']}{'GiB' if found['binary'] else 'GB'}") if found and left else None


def _amount(parts: list[str], at: int) -> str:
    """An amount of memory, times the modules that are counted before it: 2x32GB is 64GB."""
    amount = memory(parts[at]) or ""
    if at < 2 or parts[at - 1] != "x" or not parts[at - 2].isdecimal() or int(parts[at - 2]) > MODULES:
        return amount
    unit = "GiB" if amount.endswith("GiB") else "GB"
    return f"{int(parts[at - 2]) * float(amount.removesuffix(unit)):g}{unit}"
