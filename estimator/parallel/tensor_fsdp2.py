"""FSDP2 of a model that is spread over tensor-parallel ranks: a mesh of two dimensions, as torchtitan has it.

Each rank's part of a parameter is split by its rows over the data-parallel ranks. Gradients that are placed otherwise than their
parameters are redistributed when their group is reduced, and not by the optimizer. After `_init_sharding_spec_tp` and
`_get_grad_inner_tensor` of torch/distributed/fsdp/_fully_shard/_fsdp_param.py (2.13).
"""

from __future__ import annotations

from typing import Any

from estimator.families.layers import Layer
from estimator.families.parameter import Parameter
from estimator.parallel.fsdp2 import Fsdp2
from estimator.parallel.tensor import TensorParallel, misplaced
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import TEMPORARY, Tape
from estimator.tape.tensor import Tensor, empty


class TensorFsdp2(Fsdp2):
    """`tensor`: how the model is spread before it is sharded. The other settings are those of `Fsdp2`."""

    def __init__(self, tensor: TensorParallel, *settings: Any):
        super().__init__(tensor.tape, *settings)
        self.tensor = tensor

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        gathered, local = super().parameter(tape, self.tensor.part(shape, name), dtype, name)
        return self.tensor.seen(gathered, shape, name), local

    def full_shape(self, parameter: Parameter) -> Shape:
        return self.tensor.full_shape(parameter)

    def split(self, layer: Layer) -> Layer:
        return self.tensor.split(layer)

    def spread(self, model: Any, outside: list[Parameter]) -> None:
        self.tensor.spread(model, outside)
        super().spread(model, outside)

    def placed(self, p: Parameter, gradient: Tensor) -> Tensor:
        """A norm's gradient is summed over the tensor-parallel ranks, and of the embedding's, which all have whole, each copies
        its rows."""
        if not misplaced(p, self.tensor.tied):
            return gradient
        tape, group = self.tape, self.tensor.group
        part = self.tensor.part(gradient.shape, p.name)
        if part == gradient.shape:
            tape.communicate("all_reduce", *group, gradient.nbytes)
        with tape.counting(TEMPORARY):
            return empty(tape, part, gradient.dtype, "redistribute")
