"""A CPU with its RAM, as people write it ('64GB RAM', 'no gpu, 32GB', 'EPYC 9654 with 768GB'): refused, with what to ask."""

from __future__ import annotations

from itertools import pairwise

from estimator.contract.errors import NotModelled
from estimator.facts.spelling import shown
from estimator.hardware import naming
from estimator.hardware.naming import memory

CPUS = frozenset({"cpu", "cpus", "ryzen", "threadripper", "epyc", "xeon", "graviton", "altra", "i3", "i5", "i7", "i9"})
"""Words for processors: one among them names no accelerator."""
WITHOUT = frozenset({"no", "without", "zero", "0"})
"""Words that say, before `gpu`, that there is none."""
RAM = frozenset({"ram", "ddr3", "ddr4", "ddr5"})
"""Words for a host's memory."""


def refuse_cpu(text: str, parts: list[str]) -> None:
    """Raise `NotModelled` where a phrase that names no hardware means a CPU or RAM, alone or beside a card. `parts`: its words.

    Raises `UnknownHardware` where one of them may be several accelerators.
    """
    lacks = any(part in WITHOUT and after in ("gpu", "gpus") for part, after in pairwise(parts))
    if not lacks and (CPUS | RAM).isdisjoint(parts):
        return
    cards = [found for part in parts if not memory(part) and (found := naming.card([part]))]
    if cards:
        raise NotModelled(
            f"{shown(text)} is a card with its host: write the card alone, {cards[0]}, and say the host's memory in a job's "
            "host.memory",
            "hardware",
        )
    if not naming.MACS.keys().isdisjoint(parts):
        return
    amounts = [found for part in parts if (found := memory(part))]
    meant = (
        f"; a card of that memory is written {amounts[0]}" if len(amounts) == 1 and not lacks and CPUS.isdisjoint(parts) else ""
    )
    raise NotModelled(
        f"{shown(text)} is a CPU with its RAM, for which there is no verdict yet. `willitfit estimate` a job with task: serve "
        "and serving: {engine: llama.cpp, weights: q4_k_m, gpu_layers: 0}: weights and cache of its memory.host_bytes, and the "
        f"compute buffers of host and GPU, are to lie in the RAM beside the system{meant}",
        "hardware",
    )
