"""What connects the GPUs of a job, as GB/s of each of them."""

from __future__ import annotations

from estimator.contract.job import Hardware
from estimator.hardware import node
from estimator.hardware.accelerator import Accelerator
from estimator.timing.exchange import Links
from estimator.timing.measured import shared


def links(hardware: Hardware, card: Accelerator) -> Links:
    """Bandwidths between a job's GPUs, within and between nodes: those of the usual node of such cards."""
    found = node.links(card, hardware.gpus)
    within = found.within.bandwidth.value if found.within else shared().unknown_link.value
    between = found.between.bandwidth.value if found.between else shared().unknown_network.value
    return Links(hardware.gpus, within, between / hardware.gpus)


def between_gpus(hardware: Hardware, card: Accelerator) -> list[str]:
    """What is assumed of the bandwidths between GPUs, in words."""
    found, usual = links(hardware, card), node.links(card, hardware.gpus)
    within = f"{found.link:g} GB/s between GPUs of a node" if hardware.gpus > 1 else ""
    beyond = f"{found.network:g} GB/s for each GPU between nodes" if hardware.nodes > 1 else ""
    whose = f", as in {usual.node}" if usual.node else ""
    return [f"time: {' and '.join(filter(None, (within, beyond)))}, each way{whose}"]
