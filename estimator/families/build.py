"""Building a model on a tape: its parameters, and what the job makes of its layers.

A family asks for modules by name and size; the builder gives what the job calls for: a plain linear layer, one with
quantized weights, one with an adapter, parameters that are sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from estimator.dtypes import DType
from estimator.families.layers import Checkpointing, Edges, Layer, Layers
from estimator.families.modules import Conv1D, Embedding, LayerNorm, Linear, Module, RMSNorm
from estimator.tape.layout import Shape
from estimator.tape.tape import PARAMETER, Slot, Tape
from estimator.tape.tensor import Tensor, empty

Forward = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Token ids in; loss and logits out."""


@dataclass(slots=True)
class Parameter:
    """One parameter of the model.

    `tensor` is what the model computes with; `local` what this rank keeps and optimises: the same, or a shard of it.
    `count` is what a person counts: packed 4-bit weights hold two to a byte.
    """

    name: str
    tensor: Tensor
    local: Tensor
    slot: Slot | None
    count: int

    @property
    def trainable(self) -> bool:
        return self.tensor.requires_grad

    @property
    def total(self) -> int:
        """Its count in all layers."""
        return self.count * (self.slot.total if self.slot else 1)


class Sharding:
    """How data-parallel ranks share a model's parameters, gradients and optimizer states; here: not at all.

    What shares more overrides the moments at which it acts.
    """

    edges = Edges()

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        """A new parameter: what the model computes with, and what this rank keeps of it."""
        tensor = empty(tape, shape, dtype, name)
        return tensor, tensor

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        """A layer, with what must happen to its parameters before and after it runs."""
        return layer

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        """The whole model, with what must happen to the parameters outside its layers."""
        return model

    def micro_step(self, last: bool) -> None:
        """A micro-step begins; `last` if the optimizer runs after it."""

    def step(self, optimize: Callable[[], None]) -> None:
        """The optimizer's step, with what must happen before and after it."""
        optimize()


class Cache(Protocol):
    """What one attention layer remembers of the tokens before."""

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys and values; those of all tokens."""


class Quantization(Protocol):
    """Stores the weights of linear layers in few bits."""

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        """A frozen linear layer with weight [out, in]."""


class Adapter(Protocol):
    """Adds trainable parameters to linear layers."""

    def targets(self, name: str) -> bool:
        """Whether the layer of that name is adapted."""

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        """The adapted layer."""


@dataclass
class Builder:
    """Makes a model's modules on `tape`, with weights of type `dtype`."""

    tape: Tape
    dtype: DType
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    sharding: Sharding = field(default_factory=Sharding)
    quantization: Quantization | None = None
    adapter: Adapter | None = None
    cache: Callable[[], Cache] | None = None
    parameters: list[Parameter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._outside: list[Parameter] = []
        self._unit = self._outside

    @property
    def training(self) -> bool:
        """Whether the model is built to be trained: a served one has a cache instead."""
        return self.cache is None

    def parameter(
        self, name: str, shape: Shape, dtype: DType | None = None, trainable: bool | None = None, count: int | None = None
    ) -> Tensor:
        """A new parameter; frozen where an adapter is trained instead, unless `trainable` says otherwise."""
        if trainable is None:
            trainable = self.training and self.adapter is None and self.quantization is None
        with self.tape.counting(PARAMETER):
            tensor, local = self.sharding.parameter(self.tape, shape, dtype or self.dtype, name)
        tensor.requires_grad = trainable
        parameter = Parameter(name, tensor, local, self.tape.slot, tensor.numel if count is None else count)
        self.parameters.append(parameter)
        self._unit.append(parameter)
        return tensor

    def buffer(self, name: str, shape: Shape, dtype: DType) -> Tensor:
        """Bytes that live with the model but are no parameters of it: rotary frequencies, quantization constants."""
        with self.tape.counting(PARAMETER):
            return empty(self.tape, shape, dtype, name)

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = False) -> Module:
        """`torch.nn.Linear`, or what the job puts in its place."""
        if self.quantization is not None:
            module = self.quantization.linear(self, name, (outputs, inputs), bias)
        else:
            module = Linear(*self._weights(name, (outputs, inputs), outputs, bias))
        return self._adapted(name, module, inputs, outputs)

    def conv1d(self, name: str, inputs: int, outputs: int) -> Module:
        """transformers' `Conv1D`, or what the job puts in its place."""
        if self.quantization is not None:
            module = self.quantization.linear(self, name, (outputs, inputs), bias=True)
        else:
            module = Conv1D(*self._weights(name, (inputs, outputs), outputs, True))
        return self._adapted(name, module, inputs, outputs)

    def head(self, inputs: int, outputs: int, tied: bool) -> Module:
        """The output layer over the vocabulary, never quantized or adapted; `tied` to the input embedding or not."""
        return Linear(self.parameters[0].tensor if tied else self.parameter("lm_head.weight", (outputs, inputs)), None)

    def embedding(self, name: str, rows: int, size: int) -> Module:
        """`torch.nn.Embedding`; the first that a model makes is its input embedding.

        transformers makes the input embedding's output require gradients under checkpointing.
        """
        checkpointed = bool(self.checkpointing.every or self.checkpointing.segment)
        first = not self.parameters
        return Embedding(self.parameter(name + ".weight", (rows, size)), first and checkpointed)

    def rms_norm(self, name: str, size: int) -> Module:
        return RMSNorm(self.parameter(name + ".weight", (size,)))

    def layer_norm(self, name: str, size: int) -> Module:
        return LayerNorm(*self._weights(name, (size,), size, True))

    def layers(self, count: int, make: Callable[[], Layer]) -> Layers:
        """The stack of `count` layers, each checkpointed and sharded as the job says."""

        def build() -> Layer:
            unit: list[Parameter] = []
            self._unit = unit
            layer = make()
            self._unit = self._outside
            return self.sharding.unit(unit, layer)

        return Layers(self.tape, count, self.checkpointing, self.sharding.edges, build)

    def root(self, model: Forward) -> Forward:
        """The finished model's forward pass as the job runs it."""
        return self.sharding.root(self._outside, model)

    def _weights(self, name: str, shape: Shape, outputs: int, bias: bool) -> tuple[Tensor, Tensor | None]:
        weight = self.parameter(name + ".weight", shape)
        return weight, self.parameter(name + ".bias", (outputs,)) if bias else None

    def _adapted(self, name: str, module: Module, inputs: int, outputs: int) -> Module:
        if self.adapter is None or not self.adapter.targets(name):
            return module
        return self.adapter.adapt(self, name, module, inputs, outputs)
