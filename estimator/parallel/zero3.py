"""DeepSpeed's ZeRO, stage 3: parameters in parts too, gathered for the modules that run and for those that come next.

After deepspeed/runtime/zero/stage3.py and partitioned_param_coordinator.py of DeepSpeed 0.19; docs/zero.md.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from estimator import dtypes
from estimator.dtypes import DType
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward
from estimator.parallel.zero import BUCKET, Zero
from estimator.tape.layout import Shape
from estimator.tape.tape import COMMUNICATION, GRADIENT, Slot, Storage, Tape
from estimator.tape.tensor import Tensor, empty

LIVE = 1_000_000_000
"""Elements that are gathered at a time (`stage3_max_live_parameters`): each module gathers ahead until there are so many."""
PREFETCH = 50_000_000
"""Elements that a module gathers ahead (`stage3_prefetch_bucket_size`), and one parameter more."""
PERSISTENT = 100_000
"""Elements up to which a parameter stays gathered (`stage3_param_persistence_threshold`)."""
SUB_GROUP = 1_000_000_000
"""Elements that are updated at a time (`sub_group_size`)."""


class Zero3(Zero):
    """`foreach`: the optimizer makes one more set of temporaries for each sub-group that it updates."""

    def __init__(self, tape: Tape, world: int, foreach: bool):
        super().__init__(tape, world)
        self.foreach = foreach
        self.shards: list[Tensor] = []
        self.gradients: Tensor | None = None
        self.gathered: list[tuple[int, Slot | None]] = []
        """Elements of each parameter that is gathered when it is needed, and its slot."""
        self.live: Tensor | None = None

    def whole(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> Tensor:
        """The gathered parameter: counted with all that is, unless it is small; alone, a rank keeps it as it is."""
        if self.world == 1:
            return empty(tape, shape, dtype, name)
        numel = prod(shape)
        part = -(-numel // self.world)
        self.keep(part, dtype, name)
        if numel > PERSISTENT:
            self.gathered.append((numel, tape.slot))
        stays = Storage(tape, part * self.world * dtype.itemsize, name, (shape, dtype), filled=numel <= PERSISTENT)
        return Tensor(stays, shape, dtype)

    def keep(self, part: int, dtype: DType, name: str) -> None:
        """This rank's part of a parameter."""
        self.shards.append(empty(self.tape, (part,), dtype, name))

    def hold(self) -> None:
        """What is there from the beginning: this rank's part of the gradients."""
        self.gradients = self.flat(self.partition, self.dtype, "grad_partitions", GRADIENT)

    def arriving(self, elements: int) -> int:
        """Elements of the buffers that so many come in."""
        return elements

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        self.adopt(parameters)
        self.open_bucket()
        self.hold()
        total = sum(numel * (slot.total if slot else 1) for numel, slot in self.gathered)
        arriving = self.arriving(PREFETCH + max((numel for numel, _ in self.gathered), default=0))

        def run(*batch: Tensor) -> tuple[Tensor, Any]:
            if total:  # what comes is gathered in one buffer, and copied out of it
                self.live = self.flat(min(total, LIVE) + min(total, arriving), self.dtype, "all_gather", COMMUNICATION)
            self.gather(total)
            out = model(*batch)
            self.tape.backward_callbacks.append(self.finish)
            return out

        return run

    def reduce(self, leaf: Tensor) -> None:
        leaf.grad = None
        copy = self.flat(BUCKET, self.dtype, "cat", COMMUNICATION)
        del copy

    def gather(self, elements: int) -> None:
        """All that is not always there is gathered, once in forward and once in backward."""
        if elements:
            self.tape.communicate("all_gather", "data", self.world, elements * self.dtype.itemsize)

    def finish(self) -> None:
        """After backward nothing is needed again."""
        self.live = None
        self.gather(sum(numel * (slot.total if slot else 1) for numel, slot in self.gathered))
        self.exchange("reduce_scatter")

    def step(self, optimize: Callable[[], None]) -> None:
        size = min(self.partition, SUB_GROUP)
        flattened = self.flat(size, self.dtype, "flatten", GRADIENT)
        gradients = self.flat(size, dtypes.float32, "_to_copy", GRADIENT)
        del flattened
        if size == self.partition:
            optimize()
        elif self.foreach:
            roots = empty(self.tape, (size,), dtypes.float32, "_foreach_sqrt")
            del roots
        del gradients
