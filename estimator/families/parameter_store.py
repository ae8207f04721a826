"""A model's parameters and buffers as they are made: in which type, sharded how, trained or frozen, in which part and layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from estimator.families.parameter import Buffer, Parameter
from estimator.families.protocols import Adapter, Quantization, Trained
from estimator.families.sharding import Sharding
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import OTHER_MODEL, PARAMETER, Tape
from estimator.tape.tensor import Tensor, empty


@dataclass
class ParameterStore:
    """Makes parameters on `tape`, of type `dtype`, and keeps a list of them."""

    tape: Tape
    dtype: DType
    norms: DType | None = None
    """What parameters whose name has "norm" in it are held in, where it is another type."""
    sharding: Sharding = field(default_factory=Sharding)
    quantization: Quantization | None = None
    adapter: Adapter | None = None
    trained: Trained | None = None
    served: bool = False
    """Whether the model is not there to be trained."""
    beside: str = ""
    """What the model is to the one that is trained, where it is another: it is in evaluation mode."""
    parameters: list[Parameter] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    """Names of the modules of which a copy is trained."""

    def __post_init__(self) -> None:
        self._adapting = self.adapter is None or self.adapter.layers is None
        self._outside: list[Parameter] = []
        self._unit = self._outside
        self._chosen: bool | None = None
        self._path = ""
        self._part = ""
        self._learns = True

    @property
    def training(self) -> bool:
        """Whether the model itself is trained. A second model, such as a reference, is not, though its parameters are held like
        trained ones, not like frozen ones."""
        return not self.served and not self.beside

    @property
    def learns(self) -> bool:
        """Whether the loss depends on what is made now; see `unlearning`."""
        return self._learns

    def parameter(
        self,
        name: str,
        shape: Shape,
        dtype: DType | None = None,
        trainable: bool | None = None,
        count: int | None = None,
        active: int | None = None,
        tokens: bool = False,
        read: bool = True,
    ) -> Tensor:
        """A new parameter; frozen where an adapter or other parameters are trained instead, unless `trainable` says otherwise.

        One that no forward pass reads (`read` False) gets no gradient, and so no states of the optimizer, unless it lies in a
        flat tensor, of whose gradient it has its part, or in a buffer of gradients of which the optimizer gets all.
        """
        if trainable is None:
            trainable = not self.served and (self._trains(name) if self.adapter else self.quantization is None)
            trainable = trainable and (
                self.trained is None or self.trained.trains(self._path + self._whole_name(name), self._chosen)
            )
        every = self.sharding.flattens or self.sharding.updates_all
        handed = trainable
        wants = trainable and (read or every)
        trainable = wants and (self._learns or every)
        dtype = dtype or (self.norms if self.norms and "norm" in name else self.dtype)
        with self.tape.counting(OTHER_MODEL if self.beside else PARAMETER):
            tensor, local = self.sharding.parameter(self.tape, shape, dtype, name)
        tensor.requires_grad = wants
        count = tensor.numel if count is None else count
        active = count if active is None else active
        parameter = Parameter(name, tensor, local, self.tape.slot, count, active, tokens, trainable, handed, self._part)
        self.parameters.append(parameter)
        self._unit.append(parameter)
        return tensor

    def made_here(self, tensor: Tensor) -> bool:
        """Whether it is a parameter of the layer that is being made, or of what lies outside layers while that is made."""
        return any(parameter.tensor is tensor for parameter in self._unit)

    def register_last(self, tensor: Tensor) -> None:
        """A parameter is registered anew, after those that were made since."""
        for made in (self.parameters, self._unit):
            place = next(i for i, parameter in enumerate(made) if parameter.tensor is tensor)
            made.append(made.pop(place))

    def _trains(self, name: str) -> bool:
        """Whether an adapter leaves a parameter of the model trainable: some train all biases, too, or the head."""
        return self.adapter is not None and self.adapter.trains(self._whole_name(name), False)

    def _whole_name(self, name: str) -> str:
        """A module's name with the part of the model that it is in."""
        return f"{self._part}.{name}" if self._part else name

    @contextmanager
    def part(self, path: str, learns: bool = True) -> Iterator[None]:
        """What is made within is in the module at `path` of a model of several parts; `learns`: whether the loss depends on it.

        See `unlearning`.
        """
        before, self._part = self._part, path
        with self.unlearning(not learns):
            yield
        self._part = before

    @contextmanager
    def unlearning(self, asked: bool = True) -> Iterator[None]:
        """Where it is `asked`, the loss does not depend on the parameters made within: they get no gradients, and so no states of
        the optimizer, whether they are run or not."""
        before, self._learns = self._learns, self._learns and not asked
        yield
        self._learns = before

    def buffer(self, name: str, shape: Shape, dtype: DType) -> Tensor:
        """Bytes that live with the model but are no parameters of it: rotary frequencies, quantization constants."""
        self.buffers.append(Buffer(name, prod(shape), dtype, self.tape.slot))
        with self.tape.counting(OTHER_MODEL if self.beside else PARAMETER):
            return empty(self.tape, shape, dtype, name)

    def saves(self, name: str) -> bool:
        """Whether PEFT trains a copy of a module, and keeps the frozen original."""
        if self.adapter is None or not self.adapter.saves(self._whole_name(name)):
            return False
        self.saved.append(name)
        return True

    def _copied(
        self, name: str, shape: Shape, outputs: int, bias: bool, dtype: DType | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a module that is trained as a whole."""
        weight = self.parameter(name + ".weight", shape, dtype, trainable=self.training)
        return weight, self.parameter(name + ".bias", (outputs,), trainable=self.training) if bias else None

    def _weights(
        self, name: str, shape: Shape, outputs: int, bias: bool, adapted: bool = False, dtype: DType | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a module, of which an adapter may train the latter, or a copy of both."""
        weight = self.parameter(name + ".weight", shape, dtype)
        own = weight, self._bias(name, outputs, adapted) if bias else None
        return self._copied(name, shape, outputs, bias) if self.saves(name) else own

    def _bias(self, name: str, outputs: int, adapted: bool) -> Tensor:
        """The bias of a module; some adapters train it, but never that of which they train a copy."""
        frozen = self.adapter is not None and (
            self.adapter.saves(self._whole_name(name)) or not self.adapter.trains(self._whole_name(name) + ".bias", adapted)
        )
        return self.parameter(name + ".bias", (outputs,), trainable=self.training and not frozen if self.adapter else None)

    @contextmanager
    def ahead(self, of: str = "") -> Iterator[None]:
        """What is made within stands before all that was made until then, or before the first parameter `of` that name, if there
        is one: some models make their head before their body, or it after what joins their parts."""
        lists = [(made, len(made)) for made in (self.parameters, self._outside)]
        yield
        for made, before in lists:
            at = next((i for i, p in enumerate(made[:before]) if p.name == of), before) if of else 0
            made[at:] = made[before:] + made[at:before]
