"""DeepSpeed's ZeRO, stage 3: parameters in parts too, gathered for the modules that run and for those that come next.

After deepspeed/runtime/zero/stage3.py and partitioned_param_coordinator.py of DeepSpeed 0.19; docs/zero.md.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward
from estimator.parallel.zero import Zero
from estimator.parallel.zeropp import ZeroPlusPlus
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.slots import Slot
from estimator.tape.tape import COMMUNICATION, GRADIENT, PARAMETER, Storage, Tape
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
    """`foreach`: the optimizer makes one more set of temporaries for each sub-group that it updates. `plus`: ZeRO++."""

    def __init__(self, tape: Tape, world: int, foreach: bool, plus: ZeroPlusPlus):
        super().__init__(tape, world)
        self.foreach = foreach
        self.plus = plus
        self.shards: list[Tensor] = []
        self.gradients: Tensor | None = None
        self.gathered: list[tuple[int, Slot | None]] = []
        """Elements of each parameter that is gathered when it is needed, and its slot."""
        self.live: Tensor | None = None
        self.frozen = 0
        """Elements of parameters that are not trained, in the whole model."""
        self.secondary: list[Tensor] = []
        """This rank's part of the second copy of what is trained (hpZ), from the first release on, until the step is done."""
        self.copied = False

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

    def adopt(self, parameters: list[Parameter]) -> None:
        """The second copy of what is frozen is there from the beginning: it is never out of date."""
        super().adopt(parameters)
        for p in parameters:
            if not p.trainable:
                self.frozen += p.tensor.numel * p.times
                if self.plus.secondary > 1:
                    self.shards.append(
                        empty(self.tape, (-(-p.tensor.numel // self.plus.secondary),), p.tensor.dtype, "ds_secondary_tensor")
                    )

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
        total, largest = self.total, max((numel for numel, _ in self.gathered), default=0)
        arriving, size = min(total, self.arriving(PREFETCH + largest)), self.dtype.itemsize
        nbytes = min(total, LIVE) * size + self.plus.arriving_bytes(arriving, size, largest)

        def run(*batch: Tensor) -> tuple[Tensor, Any]:
            if total:  # what comes is gathered in one buffer, and copied out of it
                self.live = self.flat(nbytes, dtypes.uint8, "all_gather", COMMUNICATION)
            self.gather(self.copied)
            if not self.copied:
                self.copy_released(max(0, total - LIVE))
            out = model(*batch)
            self.tape.backward_callbacks.append(self.finish)
            return out

        return run

    @property
    def total(self) -> int:
        """Elements that are gathered, in the whole model."""
        return sum(numel * (slot.total if slot else 1) for numel, slot in self.gathered)

    def copy_released(self, released: int) -> None:
        """So many of the gathered elements are released for the first time since the step: this rank copies its part of them."""
        trained = sum(p.tensor.numel * p.times for p in self.trained)
        if self.plus.secondary > 1 and released:
            part = trained * released // self.total // self.plus.secondary
            self.secondary.append(self.flat(part, self.dtype, "ds_secondary_tensor", PARAMETER))

    def reduce(self, leaf: Tensor) -> None:
        leaf.grad = None
        copy = self.flat(self.reducing_bytes(leaf), dtypes.uint8, "cat", COMMUNICATION)
        del copy

    def reducing_bytes(self, leaf: Tensor) -> int:
        """Bytes of the buffers in which gradients are reduced when `leaf`'s comes last: a copy of the bucket, or what is
        quantized."""
        if not self.plus.gradients or len(leaf.shape) == 1:
            return self.bucket_size * self.dtype.itemsize
        quantized = self.plus.reducing_bytes(leaf.numel, self.world // self.plus.nodes)
        return quantized + self.bucket_size * self.dtype.itemsize // self.world

    def gather(self, copied: bool) -> None:
        """All that is not always there is gathered, once in forward and once in backward; what is `copied`, from the copy."""
        near = self.total if copied else min(self.total, self.frozen)
        if self.plus.secondary == 1:
            near = 0
        for elements, group, ranks in ((self.total - near, "data", self.world), (near, "secondary", self.plus.secondary)):
            if elements:
                self.tape.communicate("all_gather", group, ranks, self.plus.gathered_bytes(elements, self.dtype.itemsize))

    def finish(self) -> None:
        """After backward nothing is needed again, and all has been released."""
        self.live = None
        self.gather(copied=True)
        if not self.copied:
            self.copy_released(min(self.total, LIVE))
            self.copied = True
        self.exchange("reduce_scatter")

    def exchange(self, operation: str) -> None:
        """Quantized gradients go to the ranks of a node first, and each part to its like of the other nodes."""
        if operation != "reduce_scatter" or not self.plus.gradients:
            super().exchange(operation)
            return
        node = self.world // self.plus.nodes
        vectors = sum(p.tensor.numel * p.times for p in self.trained if len(p.tensor.shape) == 1)
        int4 = (sum(p.tensor.numel * p.times for p in self.trained) - vectors) // 2
        self.tape.communicate("all_to_all", "node", node, int4)
        self.tape.communicate("all_to_all", "nodes", self.plus.nodes, int4 // node)
        if vectors:
            self.tape.communicate(operation, "data", self.world, vectors * self.dtype.itemsize)

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
        self.drop_copy()

    def drop_copy(self) -> None:
        """The second copy is out of date (`invalidate_secondary_tensor`)."""
        self.secondary.clear()
        self.copied = False
