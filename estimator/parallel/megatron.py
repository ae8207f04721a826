"""Megatron-Core's mixed precision, on one GPU and under its data parallelism without a distributed optimizer.

The model computes in half precision. Gradients are added up in one buffer as large as the model, float32 or of the weights'
type, and the optimizer works on float32 copies of the weights. After Megatron-Core 0.16: distributed/param_and_grad_buffer.py
(`_ParamAndGradBuffer`), distributed/distributed_data_parallel.py (`_make_backward_post_hook`), and optimizer/optimizer.py
(`Float16OptimizerWithFloat16Params`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from estimator import dtypes
from estimator.dtypes import DType
from estimator.families.held import PerLayer
from estimator.families.layers import Layer
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward, Sharding
from estimator.tape.layout import Shape
from estimator.tape.tape import GRADIENT, PARAMETER, Storage, Tape
from estimator.tape.tensor import Tensor, empty


class MainParameters(Sharding):
    """`gradients`: the type of the buffer (`grad_reduce_in_fp32`); reductions over ranks are in place."""

    def __init__(self, tape: Tape, gradients: DType):
        self.tape = tape
        self.gradients = gradients
        self.trained: list[Parameter] = []
        self.buffers: list[Tensor] = []

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        """The optimizer works on float32, whose bytes come when it is known whether the parameter is trained."""
        tensor = empty(tape, shape, dtype, name)
        if dtype is dtypes.float32:
            return tensor, tensor
        return tensor, Tensor(
            Storage(tape, 4 * tensor.numel, "main_param", (shape, dtypes.float32), filled=False), shape, dtypes.float32
        )

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        self._adopt(parameters)
        return layer

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        self._adopt(parameters)
        elements: Counter[tuple[DType, DType]] = Counter()
        for p in self.trained:
            elements[p.tensor.dtype, self._summed(p)] += p.tensor.numel * p.times
        with self.tape.counting(GRADIENT):
            self.buffers += [empty(self.tape, (count,), dtype, "grad_data") for (_, dtype), count in elements.items()]
        return model

    def _adopt(self, parameters: list[Parameter]) -> None:
        """Half-precision parameters get a float32 copy; of all that are trained the gradient goes to the buffer."""
        with self.tape.counting(PARAMETER):
            for p in parameters:
                if p.trainable:
                    p.local.storage.refill("main_param")
                    p.tensor.on_grad = partial(_added, p.tensor)
                    self.trained.append(p)

    def _summed(self, parameter: Parameter) -> DType:
        """What a parameter's gradients are added up in."""
        return dtypes.float32 if self.gradients is dtypes.float32 else parameter.tensor.dtype

    def step(self, optimize: Callable[[], None]) -> None:
        """`main_grad.float()`: the buffer itself, or a float32 copy of each gradient, kept until the next step begins."""
        copies = PerLayer(self.tape)
        with self.tape.counting(GRADIENT):
            for p in self.trained:
                if self._summed(p) is not dtypes.float32:
                    self.tape.enter(p.slot)
                    copies.append(empty(self.tape, p.tensor.shape, dtypes.float32, "_to_copy"))
        self.tape.enter(None)
        optimize()
        del copies


def _added(leaf: Tensor) -> None:
    """The gradient was added to the buffer; the tensor that autograd made is dropped."""
    leaf.grad = None
