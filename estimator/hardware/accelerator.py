"""An accelerator's facts: what a process can allocate, how fast it computes and moves bytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from estimator import catalogue
from estimator.errors import InvalidJob
from estimator.facts import Fact
from estimator.units import MIB
from estimator.validation import explain

FOLDER = Path(__file__).parent / "accelerators"


class Accelerator(BaseModel):
    """One file of accelerators/."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    aliases: list[str]
    vendor: str
    architecture: str
    compute_capability: str
    bf16: bool
    memory: Fact
    """What a process can allocate: the device's total as torch reports it. MiB."""
    framebuffer: Fact
    """What nvidia-smi shows as the total. MiB."""
    nvlinks: Fact | None = None
    """NVLinks of one GPU to the others of its node, usually by switches; without them it is PCIe."""
    memory_bandwidth: Fact
    """GB/s."""
    peak: dict[str, Fact]
    """Dense peak by element type. TFLOP/s."""

    @property
    def memory_bytes(self) -> int:
        """What a process can allocate."""
        return round(self.memory.value * MIB)


@cache
def accelerator(name: str) -> Accelerator:
    """The accelerator of a name or alias; `UnknownName` if there is none."""
    path = catalogue.find((FOLDER,), name, "gpu")
    try:
        return Accelerator.model_validate(catalogue.load_yaml(path))
    except ValidationError as error:
        raise InvalidJob(explain(error, Accelerator), str(path)) from None
