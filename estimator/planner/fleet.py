"""Hardware that a search tries: every card of the catalogue, and the numbers of it that are put together."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from estimator.contract.job import Hardware
from estimator.contract.units import GB, parse_bytes
from estimator.facts import catalogue
from estimator.hardware import naming
from estimator.hardware.accelerator import FOLDER, Accelerator, accelerator
from estimator.hardware.node import node
from estimator.planner.amounts import Memory

SERVER = 8
"""Cards that are put into one node, where nothing else is said of them."""
ALONE = ("soc", "apu")
"""Forms of which a machine has one."""


def cards(asked: Memory | None = None) -> list[Accelerator]:
    """Every accelerator of the catalogue that is sold with as much memory as asked for, those alike next to each other."""
    found = [accelerator(name) for name in catalogue.names(FOLDER)]
    kept = [card for card in found if asked is None or _sold_so(card, asked)]
    return sorted(kept, key=lambda card: (card.vendor, card.compute_capability or "", card.memory_bytes, card.name))


def _sold_so(card: Accelerator, asked: Memory) -> bool:
    amounts = [parse_bytes(text) / GB for text in naming.sold(card.name)]
    return any(asked.least <= amount <= (asked.most or inf) for amount in amounts)


def sizes(card: Accelerator, most: int) -> Iterator[Hardware]:
    """One of a card, two, four, … in a node; and nodes of them, where it is known how such are built."""
    if card.form in ALONE or card.of_laptop:
        yield Hardware(gpu=card.name)
        return
    usual = int(node(card.usual_node).gpus.value) if card.usual_node else 0
    full, count = max(SERVER, usual), 1
    while count < full and count <= most:
        yield Hardware(gpu=card.name, gpus=count)
        count *= 2
    nodes = 1
    while nodes * full <= most and (nodes == 1 or usual):
        yield Hardware(gpu=card.name, gpus=full, nodes=nodes)
        nodes *= 2
