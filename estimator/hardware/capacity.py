"""How much one GPU of a job's hardware offers to a process."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.errors import InvalidJob
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.hardware.node import is_node, node
from estimator.job import Hardware
from estimator.runtime.overheads import facts
from estimator.units import GIB, MIB, gib, parse_bytes


@dataclass(frozen=True, slots=True)
class Capacity:
    """`memory_bytes` None: no hardware was given. `accelerator` None: the card has no name."""

    memory_bytes: int | None
    accelerator: Accelerator | None
    assumptions: tuple[str, ...] = ()

    @property
    def compute_capability(self) -> str | None:
        """CUDA's; None where the card has no name, or does not run CUDA."""
        return self.accelerator.compute_capability if self.accelerator and self.accelerator.vendor == "nvidia" else None


def capacity(hardware: Hardware) -> Capacity:
    """The capacity of one GPU: of a named accelerator as measured, of an unnamed card by what drivers keep. Raises `UnknownName`,
    and `InvalidJob` where a node is named, which says how many GPUs there are as well."""
    if hardware.gpu:
        if is_node(hardware.gpu):
            whole = node(hardware.gpu)
            asked = f"write gpu: {whole.accelerator} and gpus: {whole.gpus.value}"
            raise InvalidJob(f"{whole.name} is a node, not a GPU: {asked}", "hardware.gpu")
        card = accelerator(hardware.gpu)
        return Capacity(card.memory_bytes, card)
    if not hardware.memory:
        return Capacity(None, None)
    text = hardware.memory.strip().lower()
    sold = parse_bytes(text)
    framebuffer = round(sold / 10**9 * GIB) if text.endswith("gb") else sold  # cards are sold in GB that are GiB
    known = facts()
    usable = round(framebuffer - known["driver"].value * MIB - known["driver_share"].value * framebuffer)
    note = f"a card sold as {hardware.memory} taken to have {gib(framebuffer)}, of which a process can allocate {gib(usable)}"
    return Capacity(max(usable, 0), None, (note,))
