"""How much one GPU of a job's hardware offers to a process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from estimator.contract.errors import InvalidValue, UnknownName, WillItFitError
from estimator.contract.job import Hardware
from estimator.contract.units import GIB, MIB, gib, parse_bytes
from estimator.facts.spelling import folded, shown, words
from estimator.hardware import naming
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.hardware.parse import read_hardware
from estimator.runtime.overheads import facts


@dataclass(frozen=True, slots=True)
class Capacity:
    """`memory_bytes` None: no hardware was given. `accelerator` None: the card has no name."""

    memory_bytes: int | None
    accelerator: Accelerator | None
    assumptions: tuple[str, ...] = ()
    framebuffer_bytes: int | None = None
    """What nvidia-smi shows, more than a process can allocate."""
    ram: bool = False
    """Whether it is the RAM of a machine without a GPU."""

    @property
    def compute_capability(self) -> str | None:
        """CUDA's; None where the card has no name, or does not run CUDA."""
        return self.accelerator.compute_capability if self.accelerator and self.accelerator.vendor == "nvidia" else None


def capacity(hardware: Hardware) -> Capacity:
    """The capacity of one GPU, less what other processes hold of it. Raises as `_whole` does."""
    found = _whole(hardware)
    if hardware.in_use is None or found.memory_bytes is None:
        return found
    of = "the RAM" if found.ram else "each GPU"
    said = f"other processes hold {gib(hardware.in_use)} of {of}, which is taken off"
    return replace(found, memory_bytes=max(found.memory_bytes - hardware.in_use, 0), assumptions=(*found.assumptions, said))


def _whole(hardware: Hardware) -> Capacity:
    """The capacity of one GPU: of a named accelerator as measured, of an unnamed card by what drivers keep. Raises `UnknownName`,
    and `InvalidJob` where the name is a node's, or counts, which other fields of a job do."""
    if hardware.gpu is not None:
        try:
            card = accelerator(hardware.gpu)
        except UnknownName:
            _refuse_phrase(hardware.gpu)
            raise
        plain = folded(hardware.gpu) == folded(card.name)
        return Capacity(
            card.memory_bytes,
            card,
            () if plain else (f"{hardware.gpu} read as {card.name}",),
            round(card.framebuffer.value * MIB),
        )
    if hardware.without_gpu:
        return _of_ram(hardware)
    if not hardware.memory:
        return Capacity(None, None)
    framebuffer = _as_sold(hardware.memory)
    known = facts()
    usable = round(framebuffer - known["driver"].value * MIB - known["driver_share"].value * framebuffer)
    note = f"a card sold as {hardware.memory} taken to have {gib(framebuffer)}, of which a process can allocate {gib(usable)}"
    return Capacity(max(usable, 0), None, (note,), framebuffer)


def _as_sold(text: str) -> int:
    """Bytes of an amount of memory, which is sold in GB that are GiB."""
    sold = parse_bytes(text)
    return round(sold / 10**9 * GIB) if text.strip().lower().endswith("gb") else sold


def ram_bytes(hardware: Hardware) -> int | None:
    """A node's RAM, of which its system takes a part; None where it is not given."""
    return _as_sold(hardware.ram) if hardware.ram else None


def _of_ram(hardware: Hardware) -> Capacity:
    """All RAM of a machine without a GPU: what its system takes of it is in the range of what is needed."""
    size, system = ram_bytes(hardware) or 0, facts()["operating_system"]
    note = (
        f"a machine without a GPU, whose {gib(size)} of RAM a process may have all of but what the operating system takes: up to "
        f"{gib(round(system.value * MIB))}, on which a verdict of tight depends ({system.note}). A model larger than that "
        "runs from its file on the disk, many times slower, and is said not to fit"
    )
    return Capacity(size, None, (note,), ram=True)


def _refuse_phrase(text: str) -> None:
    """Refuse a text in place of a GPU's name that says more of the hardware than that."""
    try:
        found = read_hardware(text).hardware
    except WillItFitError:
        return
    whole = found.model_dump(include={"gpu", "memory", "gpus", "nodes"}, exclude_none=True)
    asked = " and ".join(f"{key}: {value}" for key, value in whole.items() if value != 1)
    what = f"{text} is a node, not a GPU" if naming.node(words(text)) else f"{shown(text)} is more than a GPU's name"
    raise InvalidValue(f"{what}: write {asked}", "hardware.gpu")
