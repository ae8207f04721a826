"""How much one GPU of a job's hardware offers to a process."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.job import Hardware
from estimator.units import GIB, MIB, gib, parse_bytes

DRIVER_MIB = 330
DRIVER_SHARE = 0.0022
"""What drivers keep of a card's memory: 330 MiB and 0.22 %, by twelve cards of which both totals were read (2026-11)."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """`memory_bytes` None: no hardware was given. `accelerator` None: the card has no name."""

    memory_bytes: int | None
    accelerator: Accelerator | None
    assumptions: tuple[str, ...] = ()

    @property
    def compute_capability(self) -> str | None:
        return self.accelerator.compute_capability if self.accelerator else None


def capacity(hardware: Hardware) -> Capacity:
    """The capacity of one GPU: of a named accelerator as measured, of an unnamed card by what drivers keep."""
    if hardware.gpu:
        card = accelerator(hardware.gpu)
        return Capacity(card.memory_bytes, card)
    if not hardware.memory:
        return Capacity(None, None)
    text = hardware.memory.strip().lower()
    sold = parse_bytes(text)
    framebuffer = round(sold / 10**9 * GIB) if text.endswith("gb") else sold  # cards are sold in GB that are GiB
    usable = round(framebuffer - DRIVER_MIB * MIB - DRIVER_SHARE * framebuffer)
    note = f"a card sold as {hardware.memory} taken to have {gib(framebuffer)}, of which a process can allocate {gib(usable)}"
    return Capacity(max(usable, 0), None, (note,))
