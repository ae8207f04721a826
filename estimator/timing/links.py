"""What connects the GPUs of a job."""

from __future__ import annotations

from estimator.errors import NotModelled
from estimator.job import Hardware
from estimator.timing.exchange import Links
from estimator.timing.measured import Curves, curves

NETWORK = 50.0
"""GB/s of one GPU to other nodes: a network card of 400 Gbit/s each, as in HGX H100 and B200 systems."""


def links(hardware: Hardware, curves: Curves) -> Links:
    """Those of a node of such cards, and of a cluster of such nodes."""
    return Links(hardware.gpus, curves.link, NETWORK)


def between_gpus(hardware: Hardware, card: str) -> list[str]:
    """What is assumed of them, in words; nothing where the card's exchanges were not measured."""
    try:
        found = links(hardware, curves(card))
    except NotModelled:
        return []
    within = f"{found.link:g} GB/s between GPUs of a node" if hardware.gpus > 1 else ""
    beyond = f"{found.network:g} GB/s for each GPU between nodes" if hardware.nodes > 1 else ""
    return [f"time: {' and '.join(filter(None, (within, beyond)))}, each way"]
