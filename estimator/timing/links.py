"""What connects the GPUs of a job, as GB/s of each of them."""

from __future__ import annotations

from estimator.contract.job import Hardware
from estimator.hardware import node
from estimator.hardware.accelerator import Accelerator
from estimator.timing.exchange import Links
from estimator.timing.measured import shared


def links(hardware: Hardware, card: Accelerator) -> Links:
    """Bandwidths between a job's GPUs, within and between nodes: those of the usual node of such cards, but for a network that
    the job says."""
    found = node.links(card, hardware.gpus)
    within = found.within.bandwidth.value if found.within else shared().unknown_link.value
    between = found.between.bandwidth.value if found.between else shared().unknown_network.value
    if hardware.network:
        between = hardware.network.gigabytes
    return Links(hardware.gpus, within, between / hardware.gpus)


def between_gpus(hardware: Hardware, card: Accelerator) -> list[str]:
    """What is assumed of the bandwidths between GPUs, in words."""
    found, usual = links(hardware, card), node.links(card, hardware.gpus)
    whose = f", as in {usual.node}" if usual.node else ""
    within = f"{found.link:g} GB/s between GPUs of a node" if hardware.gpus > 1 else ""
    beyond = f"{found.network:g} GB/s for each GPU between nodes" if hardware.nodes > 1 else ""
    if beyond and hardware.network:
        return [f"time: {within + whose + ' and ' if within else ''}{beyond}, as hardware.network says, each way"]
    return [f"time: {' and '.join(filter(None, (within, beyond)))}, each way{whose}"]
