"""DeepSpeed's ZeRO, stage 3: parameters in parts too, gathered for each module when it runs.

After deepspeed/runtime/zero/stage3.py and partitioned_param_coordinator.py of DeepSpeed 0.19; docs/zero.md.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from estimator import dtypes
from estimator.dtypes import DType
from estimator.families.build import Forward, Parameter
from estimator.families.modules import Module
from estimator.parallel.zero import BUCKET, Zero
from estimator.tape.autograd import attach, record
from estimator.tape.layout import Shape
from estimator.tape.tape import COMMUNICATION, GRADIENT, Storage, Tape
from estimator.tape.tensor import Tensor, alias, empty

PREFETCH = 50_000_000
"""Elements that are gathered ahead (`stage3_prefetch_bucket_size`), and one parameter more."""
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
        self.ahead: Tensor | None = None
        self.modules: list[_Module] = []
        self.largest = 0

    def whole(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> Tensor:
        """The gathered parameter: no bytes until it is gathered, unless it is small; alone, a rank keeps it as it is."""
        if self.world == 1:
            return empty(tape, shape, dtype, name)
        numel = prod(shape)
        part = -(-numel // self.world)
        self.largest = max(self.largest, numel)
        self.shards.append(empty(tape, (part,), dtype, name))
        gathered = Storage(tape, part * self.world * dtype.itemsize, name, filled=numel <= PERSISTENT)
        return Tensor(gathered, shape, dtype)

    def module(self, parameters: list[Parameter], module: Module) -> Module:
        gathered = [p for p in parameters if p.tensor.numel > PERSISTENT]
        if self.world == 1 or not gathered:
            return module
        wrapped = _Module(gathered, module)
        self.modules.append(wrapped)
        return wrapped

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        self.adopt(parameters)
        self.open_bucket()
        self.gradients = self.flat(self.partition, self.dtype, "grad_partitions", GRADIENT)

        def run(ids: Tensor) -> tuple[Tensor, Tensor]:
            if self.world > 1:  # gathered together in one buffer, then copied out of it
                self.ahead = self.flat(2 * (PREFETCH + self.largest), self.dtype, "all_gather_coalesced", COMMUNICATION)
            out = model(ids)
            self.tape.backward_callbacks.append(self.finish)
            return out

        return run

    def reduce(self, leaf: Tensor) -> None:
        leaf.grad = None
        copy = self.flat(BUCKET, self.dtype, "cat", COMMUNICATION)
        del copy

    def finish(self) -> None:
        self.ahead = None
        for module in self.modules:
            self.tape.enter(module.parameters[0].slot)
            module.release()
        self.tape.enter(None)

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


class _Module:
    """A module whose parameters are gathered before it runs and released after, in forward and in backward."""

    def __init__(self, parameters: list[Parameter], module: Module):
        self.parameters, self.module = parameters, module

    def __call__(self, x: Tensor) -> Tensor:
        self.gather()
        node = record("PostBackwardFunction", (x,), (), self._passed)
        out = self.module(x if node is None else attach(node, alias(x, x.shape, x.strides)))
        self.release()
        if out.grad_fn is not None:
            out.grad_fn.hook = self.gather
        return out

    def _passed(self, g: Tensor) -> Tensor:
        self.release()
        return g

    def gather(self) -> None:
        tape = self.parameters[0].tensor.tape
        with tape.counting(COMMUNICATION):
            for p in self.parameters:
                p.tensor.storage.refill("all_gather")

    def release(self) -> None:
        for p in self.parameters:
            p.tensor.storage.release()
