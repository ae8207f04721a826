"""Who measures: torch's own counters of the GPU that is used, or another reader of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

QUANTITIES = ("allocated", "reserved")


class Reader(Protocol):
    """What is asked for the peaks of memory since it was reset."""

    def reset(self) -> None:
        """Peaks begin anew."""

    def read(self) -> Mapping[str, int] | None:
        """Bytes by quantity, `allocated` and `reserved` or one of them; None where nothing can be measured."""


class Cuda:
    """`torch.cuda.max_memory_allocated` and `max_memory_reserved` of the current device (torch/cuda/memory.py)."""

    def __init__(self) -> None:
        self.cuda: Any = import_module("torch").cuda

    def reset(self) -> None:
        """Peaks begin with what is allocated now."""
        if self.cuda.is_available():
            self.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, int] | None:
        """None without a CUDA device."""
        if not self.cuda.is_available():
            return None
        return {"allocated": self.cuda.max_memory_allocated(), "reserved": self.cuda.max_memory_reserved()}

    def used(self) -> int | None:
        """Bytes of the device that are used, by whatever process."""
        if not self.cuda.is_available():
            return None
        free, total = self.cuda.mem_get_info()
        return int(total - free)

    def device(self) -> str | None:
        """What the device is called."""
        return str(self.cuda.get_device_name()) if self.cuda.is_available() else None
