"""DeepSpeed's ZeRO, stages 1 and 2: the model whole on every rank, gradients and optimizer states in parts.

The optimizer works on a float32 copy of this rank's part of the parameters. After
deepspeed/runtime/zero/stage_1_and_2.py of DeepSpeed 0.19, with its default configuration; docs/zero.md has the line
for each claim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from estimator.families.layers import Edges, Layer
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward, Sharding
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import COMMUNICATION, GRADIENT, PARAMETER, Storage, Tape
from estimator.tape.tensor import Tensor, empty

BUCKET = 500_000_000
"""Elements of the bucket in which gradients are reduced (`reduce_bucket_size`), where a job says none."""
OVERFLOW_CHECK = 11
"""Bytes per element that the check for infinities takes for a moment: two float32 copies and the flags."""


class Zero(Sharding):
    """What the stages share: the float32 partition, and the bucket into which gradients go as they come."""

    edges = Edges(first=1, last=1)

    def __init__(self, tape: Tape, world: int):
        self.tape = tape
        self.world = world
        self.trained: list[Parameter] = []
        self.bucket: Tensor | None = None
        self.bucket_size, self.buckets = BUCKET, 1
        """Elements of a bucket, and how many are there: two where one fills while the other is reduced."""
        self.last = True

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        tensor = self.whole(tape, shape, dtype, name)
        part = (-(-tensor.numel // self.world),)
        home = tape.host or tape  # what is offloaded is the optimizer, at least
        return tensor, Tensor(Storage(home, 0, name, filled=False), part, dtypes.float32)

    def whole(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> Tensor:
        """What the model computes with."""
        return empty(tape, shape, dtype, name)

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        self.adopt(parameters)
        return layer

    def adopt(self, parameters: list[Parameter]) -> None:
        """Give trainable parameters their float32 partition, and watch for their gradients."""
        with self.tape.counting(PARAMETER):
            for p in parameters:
                if p.trainable:
                    p.local = self.master(p.local.shape)
                    p.tensor.on_grad = partial(self.reduce, p.tensor)
                    self.trained.append(p)

    def master(self, shape: Shape) -> Tensor:
        """This rank's part of a parameter's float32 copy."""
        return empty(self.tape, shape, dtypes.float32, "master")

    def micro_step(self, last: bool) -> None:
        self.last = last

    def reduce(self, leaf: Tensor) -> None:
        """Called when backward has made the gradient of `leaf`."""

    @property
    def partition(self) -> int:
        """Elements of this rank's part of everything trained."""
        return sum(p.local.numel * (p.slot.total if p.slot else 1) for p in self.trained)

    @property
    def dtype(self) -> DType:
        """The type of the model's trained parameters."""
        return self.trained[0].tensor.dtype

    def flat(self, elements: int, dtype: DType, operation: str, component: str) -> Tensor:
        """A flat buffer."""
        with self.tape.counting(component):
            return empty(self.tape, (elements,), dtype, operation)

    def exchange(self, operation: str) -> None:
        """All ranks exchange what is trained: its gradients, or the parameters."""
        elements = sum(p.tensor.numel * p.times for p in self.trained)
        if self.world > 1:
            self.tape.communicate(operation, "data", self.world, elements * self.dtype.itemsize)

    def open_bucket(self) -> None:
        if self.bucket is None:
            self.bucket = self.flat(self.buckets * self.bucket_size, self.dtype, "ipg_bucket", COMMUNICATION)

    def reduce_bucket(self) -> None:
        """All-reduce the bucket; where it spans parts of several ranks, through a copy of it."""
        if self.world > 1:
            copy = self.flat(self.bucket_size, self.dtype, "flatten", COMMUNICATION)
            del copy


class Zero12(Zero):
    """Stage 1 keeps every gradient to the end of the last micro-step; stage 2 keeps only this rank's part of them."""

    def __init__(self, tape: Tape, world: int, stage: int):
        super().__init__(tape, world)
        self.stage = stage
        self.averaged: Tensor | None = None
        """This rank's part of the averaged gradients, over the micro-steps so far."""
        self.arriving: Tensor | None = None
        self.large: Tensor | None = None
        """A gradient larger than the bucket: reduced where it is, when the next one comes."""

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        self.adopt(parameters)

        def run(*batch: Tensor) -> tuple[Tensor, Any]:
            out = model(*batch)
            self.tape.backward_callbacks.append(self.finish)
            return out

        return run

    def reduce(self, leaf: Tensor) -> None:
        self.open_bucket()
        if self.stage == 1 or leaf.grad is None:
            return
        if self.arriving is None:
            self.arriving = self.flat(self.partition, self.dtype, "grads_in_partition", GRADIENT)
        if self.tape.slot is None:
            self.large = leaf.grad if leaf.numel > self.bucket_size else None
        elif self.tape.slot.total == 1:  # one of a layer is let go at once: no layer may free what another one holds
            self.large = None
        leaf.grad = None
        self.reduce_bucket()

    def finish(self) -> None:
        """After backward the bucket goes: in stage 1 after the last micro-step's, and then it averages what it kept."""
        if self.stage == 2:
            self.exchange("reduce_scatter")
        if self.stage == 1 and not self.last:
            return
        self.bucket = self.large = None
        self.averaged, self.arriving = self.arriving, None
        if self.stage == 1:
            self.reduce_bucket()
            self.averaged = self.flat(self.partition, self.dtype, "get_flat_partition", GRADIENT)
            for p in self.trained:
                self.tape.enter(p.slot)
                p.tensor.grad = None
            self.tape.enter(None)

    def step(self, optimize: Callable[[], None]) -> None:
        largest = max(min(p.tensor.numel, self.partition) for p in self.trained)
        check = self.flat(largest * OVERFLOW_CHECK, dtypes.uint8, "isinf", COMMUNICATION)
        del check
        flattened = self.flat(self.partition, self.dtype, "flatten", GRADIENT)
        gradients = self.flat(self.partition, dtypes.float32, "_to_copy", GRADIENT)
        del flattened
        self.averaged = None
        if self.stage == 1:
            self.exchange("reduce_scatter")
        optimize()
        self.exchange("all_gather")
        del gradients
