"""How data-parallel ranks share a model: the moments at which a strategy acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.families.layers import Edges, Layer
from estimator.families.modules import Linear
from estimator.families.parameter import Parameter
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty

Forward = Callable[..., tuple[Tensor, Any]]
"""A batch in; out come the loss, and what else the model's output holds."""


class Sharding:
    """How data-parallel ranks share a model's parameters, gradients and optimizer states; here: not at all.

    What shares more overrides the moments at which it acts.
    """

    edges = Edges()
    input_dtype: DType | None = None
    """What the numbers that a layer is called with are cast to."""
    weights_dtype: DType | None = None
    """What weights are gathered in, where that is another type than they are kept in; buffers stay in theirs."""
    rounds = 2
    """Micro-steps that differ: the first, and those after it."""
    encloses = False
    """Whether a layer is recomputed within what gathers its parameters, which then stay gathered between both."""
    flattens = False
    """Whether the parameters of a layer lie in one tensor, so that all are of one type."""
    untied = False
    """Whether a parameter may be in one layer only."""
    updates_all = False
    """Whether the optimizer gets a gradient for every parameter that may have one, whatever the loss depends on."""

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        """A new parameter: what the model computes with, and what this rank keeps of it."""
        tensor = empty(tape, shape, dtype, name)
        return tensor, tensor

    def full_shape(self, parameter: Parameter) -> Shape:
        """The shape of a parameter before ranks that are no data-parallel ones share it."""
        return parameter.tensor.shape

    def spread(self, model: Any, outside: list[Parameter]) -> None:
        """The model is built, with these parameters `outside` its layers."""

    def split(self, layer: Layer) -> Layer:
        """A layer, whose modules are shared by ranks that are no data-parallel ones."""
        return layer

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        """A layer, with what must happen to its parameters before and after it runs."""
        return layer

    def leaf(self, module: Linear, unit: list[Parameter], adapts: bool = True, learns: bool = True) -> Linear:
        """A linear layer trained beside frozen ones, or that `adapts` one; its parameters are the last of its layer, `unit`.

        `learns`: whether the loss depends on it.
        """
        return module

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        """The whole model, with what must happen to the parameters outside its layers."""
        return model

    def prepare(self, trained: list[Parameter]) -> None:
        """The optimizer is made, for these parameters."""

    def micro_step(self, last: bool) -> None:
        """A micro-step begins; `last` if the optimizer runs after it."""

    def step(self, optimize: Callable[[], None]) -> None:
        """The optimizer's step, with what must happen before and after it."""
        optimize()
