"""What a job's checkpoint comes to, all tensors together: counted once for a simulation, and read often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from estimator.host import weights
from estimator.host.disk import model_bytes, shards
from estimator.host.weights import Saved
from estimator.simulation.simulation import KEPT, Simulation
from estimator.tape import dtypes


@dataclass(frozen=True)
class Content:
    """Tensors that are saved together."""

    tensors: list[Saved]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors)

    @cached_property
    def numel(self) -> int:
        """Elements of all tensors."""
        return sum(t.numel for t in self.tensors)

    @cached_property
    def half(self) -> bool:
        """Whether all tensors have the type that checkpoints are published in, so that loading need not convert them."""
        return all(t.dtype is dtypes.bfloat16 for t in self.tensors)

    @cached_property
    def largest_file_bytes(self) -> int:
        """Bytes of the tensors in the largest file of the checkpoint."""
        return max(sum(t.nbytes for t in file) for file in shards(self.tensors))

    @cached_property
    def disk_bytes(self) -> int:
        """Bytes of all files of the checkpoint on disk."""
        return model_bytes(self.tensors)


@lru_cache(maxsize=KEPT)
def contents(simulation: Simulation) -> tuple[Content, Content]:
    """The model itself, and what an adapter trains."""
    return Content(weights.base(simulation.build)), Content(weights.adapter(simulation.build))
