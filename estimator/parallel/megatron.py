"""Megatron-Core's mixed precision and its data parallelism, with and without a distributed optimizer.

The model computes in half precision. Gradients are added up in one buffer as large as the model, float32 or of the weights'
type, and the optimizer works on float32 copies of the weights, of which a distributed one has this rank's part. After
Megatron-Core 0.16: distributed/param_and_grad_buffer.py (`_ParamAndGradBuffer`), distributed/distributed_data_parallel.py
(`_make_backward_post_hook`), optimizer/optimizer.py (`Float16OptimizerWithFloat16Params`) and optimizer/distrib_optimizer.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod

from estimator.families.layers import Layer
from estimator.families.model_output import PerLayer
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward, Sharding
from estimator.tape import dtypes
from estimator.tape.collectives import Group
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import GRADIENT, PARAMETER, Storage, Tape
from estimator.tape.tensor import Tensor, alias, empty

PARAMETER_STEP = 64
"""Elements; in the buffers of a distributed optimizer each parameter starts at a multiple (`_pad_start_of_param_if_needed`)."""
BUFFER_STEP = 128
"""Elements; each buffer is a multiple of this, and of the ranks that share it (`_pad_end_of_bucket_if_needed`)."""

LEAST_BUCKET, OF_EACH_RANK = 40_000_000, 1_000_000
"""Elements of a bucket whose gradients are reduced while others come: at least so many, and so many for each rank that shares it
(core/distributed/distributed_data_parallel.py)."""

Ranks = Callable[[str], Group]
"""The ranks that hold the same parameter, by its name."""


ALONE = Group("pipeline")


class MainParameters(Sharding):
    """`gradients`: the type of the buffer (`grad_reduce_in_fp32`); `ranks` reduce it in place, after those that have `copies` of
    the same stages of a pipeline.

    `distributed`: each rank keeps and updates its part of the float32 copies, and gathers the others' weights after the step.
    """

    updates_all = True
    """The optimizer gets a part of the buffer for every parameter, of those that the loss does not depend on, too."""

    def __init__(self, tape: Tape, gradients: DType, ranks: Ranks, distributed: bool, copies: Group = ALONE):
        self.tape = tape
        self.copies = copies
        self.gradients = gradients
        self.ranks, self.distributed = ranks, distributed
        self.trained: list[Parameter] = []
        self.buffers: list[Tensor] = []

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        """The optimizer works on float32, whose bytes come when it is known whether the parameter is trained."""
        tensor = empty(tape, shape, dtype, name)
        part = (-(-tensor.numel // self.ranks(name).size),) if self.distributed else shape
        if dtype is dtypes.float32:
            return tensor, tensor if part == shape else alias(tensor, part)
        form = part, dtypes.float32
        return tensor, Tensor(Storage(tape, 4 * prod(part), "main_param", form, filled=False), *form)

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        self._adopt(parameters)
        return layer

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        self._adopt(parameters)
        elements: Counter[tuple[DType, DType, Group]] = Counter()
        step = PARAMETER_STEP if self.distributed else 1
        for p in self.trained:
            elements[p.tensor.dtype, self._summed(p), self.ranks(p.name)] += _padded(p.tensor.numel, step) * p.times
        with self.tape.counting(GRADIENT):
            for (_, dtype, group), count in elements.items():
                whole = _padded(count, math.lcm(group.size, BUFFER_STEP)) if self.distributed else count
                self.buffers.append(empty(self.tape, (whole,), dtype, "grad_data"))
        self.groups = list(elements)
        return model

    def _adopt(self, parameters: list[Parameter]) -> None:
        """Half-precision parameters get a float32 copy; of all that are trained the gradient goes to the buffer."""
        with self.tape.counting(PARAMETER):
            for p in parameters:
                if p.trainable:
                    self._copied(p)
                    p.tensor.on_grad = partial(self.added, p.tensor)
                    self.trained.append(p)

    def _copied(self, parameter: Parameter) -> None:
        """The float32 copy comes."""
        parameter.local.storage.refill("main_param")

    def added(self, leaf: Tensor) -> None:
        """A product added the gradient to the buffer; the tensor that autograd made is dropped."""
        leaf.grad = None

    def _summed(self, parameter: Parameter) -> DType:
        """What a parameter's gradients are added up in."""
        return dtypes.float32 if self.gradients is dtypes.float32 else parameter.tensor.dtype

    def step(self, optimize: Callable[[], None]) -> None:
        """`main_grad.float()`: the buffer itself, or a float32 copy of each gradient, kept until the next step begins."""
        if self.copies.size > 1:
            nbytes = sum(buffer.nbytes for buffer in self.buffers)
            self.tape.communicate("all_reduce", self.copies.name, self.copies.size, nbytes)
        self.reduce()
        copies = PerLayer(self.tape)
        with self.tape.counting(GRADIENT):
            for p in self.trained:
                if self._summed(p) is not dtypes.float32:
                    self.tape.enter(p.slot)
                    copies.append(empty(self.tape, p.local.shape, dtypes.float32, "_to_copy"))
        self.tape.enter(None)
        optimize()
        self.read_and_write()
        self._quantize()
        if self.distributed:
            self._exchange("all_gather", gathered=True)
        del copies

    def reduce(self) -> None:
        """Ranks add up what each has in its buffer."""
        self._exchange("reduce_scatter" if self.distributed else "all_reduce", gathered=False)

    def read_and_write(self) -> None:
        """What kernels read and write in addition to the optimizer's: the buffer, which is filled with zeros
        (`zero_grad_buffer`), the gradients, for their norm, which is clipped to 1.0 unless arguments say otherwise
        (`get_grad_norm_fp32`), and the float32 copies, of which the weights are made anew
        (`_copy_main_params_to_model_params`)."""
        self.tape.compute("zero_", 0, sum(buffer.nbytes for buffer in self.buffers))
        self.tape.compute("norm", 0, sum(4 * p.local.numel * p.times for p in self.trained))
        copied = [p for p in self.trained if p.tensor.dtype is not dtypes.float32]
        self.tape.compute("copy_", 0, sum((4 + p.tensor.dtype.itemsize) * p.local.numel * p.times for p in copied))

    def _quantize(self) -> None:
        """Weights that are kept in fp8 get theirs by way of half precision, all of them at once
        (transformer_engine/pytorch/tensor/utils.py, `cast_master_weights_to_fp8`)."""
        casts = PerLayer(self.tape)
        for p in self.trained:
            if p.tensor.dtype is dtypes.float8_e4m3fn:
                self.tape.enter(p.slot)
                casts.append(empty(self.tape, p.local.shape, dtypes.bfloat16, "_to_copy"))
        self.tape.enter(None)

    def _exchange(self, operation: str, gathered: bool) -> None:
        """What ranks exchange of each buffer: gradients, or the weights `gathered` after the step."""
        for (weights, _, group), buffer in zip(self.groups, self.buffers, strict=True):
            if group.size > 1:
                nbytes = buffer.numel * (weights if gathered else buffer.dtype).itemsize
                self.tape.communicate(operation, group.name, group.size, nbytes)


def bucket_elements(ranks: int) -> int:
    """Elements of a bucket that is exchanged by itself, where so many ranks share it."""
    return max(LEAST_BUCKET, OF_EACH_RANK * ranks)


def _padded(count: int, step: int) -> int:
    return -(-count // step) * step
