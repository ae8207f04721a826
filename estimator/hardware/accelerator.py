"""An accelerator's facts: what a process can allocate, how fast it computes and moves bytes."""

from __future__ import annotations

from functools import cache, lru_cache

from pydantic import BaseModel, ConfigDict

from estimator.contract.units import MIB
from estimator.contract.validation import validated
from estimator.facts import catalogue
from estimator.facts.fact import Fact
from estimator.facts.spelling import words
from estimator.hardware import naming

FOLDER = naming.CARDS


class Link(BaseModel):
    """What joins an accelerator to others of its node, or to its host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    """nvlink4, xgmi, ICI; PCIe 5.0 x16."""
    peers: int | None = None
    """How many accelerators such links join at most, where that is fewer than a node has."""
    bandwidth: Fact
    """GB/s of one accelerator in one direction, all its links together."""


class Accelerator(BaseModel):
    """One file of accelerators/."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    aliases: list[str]
    vendor: str
    architecture: str
    form: str
    """How it is built in: sxm5, pcie, oam, superchip, soc."""
    compute_capability: str | None = None
    """NVIDIA's two numbers, AMD's target (gfx942), or which of Intel's GPUs (xe2-hpg); None where neither CUDA nor ROCm runs."""
    bf16: bool
    memory: Fact
    """Memory that a process can allocate, MiB: the device's total as torch reports it."""
    framebuffer: Fact
    """Total memory that nvidia-smi shows, MiB."""
    memory_bandwidth: Fact
    """Bandwidth of the accelerator's memory, GB/s."""
    peak: dict[str, Fact]
    """Dense peak by element type, products of less than fp32 summed in fp32. TFLOP/s."""
    interconnect: Link | None = None
    """Links to accelerators of the same kind; None where only the host's join them."""
    pcie: Link | None = None
    power: Fact | None = None
    """Power that the board may draw, W."""
    multiprocessors: Fact | None = None
    """NVIDIA's multiprocessors, AMD's compute units, Apple's GPU cores."""
    slice_cores: Fact | None = None
    """What the number in the name of a slice of them counts of each chip: 1 of TPU v5e, whose v5e-8 has 8 chips; 2 of TPU v4."""
    usual_node: str | None = None
    """Name of the node that is assumed around accelerators of which nothing else is said."""

    @property
    def of_laptop(self) -> bool:
        """Whether it is soldered into a laptop, which has one."""
        return self.name.endswith("-laptop")

    @property
    def memory_bytes(self) -> int:
        """What a process can allocate."""
        return round(self.memory.value * MIB)

    @property
    def facts(self) -> dict[str, Fact]:
        """Every fact by its place in the file."""
        found = {name: getattr(self, name) for name in ("memory", "framebuffer", "memory_bandwidth")}
        found |= {f"peak.{kind}": fact for kind, fact in self.peak.items()}
        found |= {f"{name}.bandwidth": link.bandwidth for name in ("interconnect", "pcie") if (link := getattr(self, name))}
        return found | {name: fact for name in ("power", "multiprocessors", "slice_cores") if (fact := getattr(self, name))}


def accelerator(name: str) -> Accelerator:
    """The accelerator of a name or alias; `UnknownName` if there is none."""
    found = _called(name)
    if found is None:
        raise catalogue.unknown((FOLDER,), name, "gpu")
    return _read(found)


@lru_cache(maxsize=512)
def _called(name: str) -> str | None:
    return naming.card(naming.with_units(words(name)))


@cache
def _read(name: str) -> Accelerator:
    path = FOLDER / f"{name}.yaml"
    return validated(Accelerator, catalogue.shipped(path), str(path))
