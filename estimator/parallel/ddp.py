"""DistributedDataParallel: every rank keeps the whole model, and buckets in which gradients are averaged.

The buckets hold a copy of every gradient. With `gradient_as_bucket_view` the gradients are views of them instead
(torch/csrc/distributed/c10d/reducer.cpp, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.layers import Layer
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward, Sharding
from estimator.tape.tape import COMMUNICATION, GRADIENT, Tape
from estimator.tape.tensor import Tensor, empty


class Ddp(Sharding):
    """Buckets are allocated once, with the model; the step itself allocates nothing more."""

    def __init__(self, tape: Tape, world: int, gradient_as_bucket_view: bool = False):
        self.tape = tape
        self.world = world
        self.views = gradient_as_bucket_view
        self.buckets: list[Tensor] = []
        self.reduced: list[tuple[int, int]] = []
        """Bytes of each gradient, and in how many layers it occurs."""

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        self._allocate(parameters)
        return layer

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        self._allocate(parameters)
        return model

    def step(self, optimize: Callable[[], None]) -> None:
        """What the last micro-step's backward pass has reduced, it has by now."""
        for nbytes, times in self.reduced:
            self.tape.communicate("all_reduce", "data", self.world, nbytes * times)
        optimize()

    def _allocate(self, parameters: list[Parameter]) -> None:
        with self.tape.counting(GRADIENT if self.views else COMMUNICATION):
            for p in parameters:
                if p.trainable:
                    self.buckets.append(empty(self.tape, p.tensor.shape, p.tensor.dtype, "bucket"))
                    self.reduced.append((p.tensor.nbytes, p.times))
                    if self.views:
                        p.tensor.on_grad = _Moved(p.tensor)


class _Moved:
    """The gradient is copied to its bucket, and the tensor that autograd made is dropped."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: Tensor):
        self.leaf = leaf

    def __call__(self) -> None:
        self.leaf.grad = None
