"""What PEFT's methods have in common: which layers they change, and what else they train (peft 0.21, tuners/tuners_utils.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast, runtime_checkable

from estimator.contract.errors import Contradiction, NotModelled
from estimator.families.build import Builder
from estimator.families.modules import Conv1D, Embedding, Join, Module, Residual
from estimator.families.parameter import Weight
from estimator.families.sharding import Forward
from estimator.tape.dtypes import DType
from estimator.tape.tensor import Tensor
from estimator.training.targets import Targets


@runtime_checkable
class Dense(Protocol):
    """A linear layer that keeps its weight as it is: [out, in], or [in, out] for `Conv1D`."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Method(ABC):
    """Trainable parameters of `dtype` added to frozen layers, or in their place.

    `bias`: which of the model's own biases are trained, too: none, all, or those of the adapted layers ("only").
    """

    of_peft: ClassVar[bool] = True

    chosen: Targets
    dtype: DType
    quantization: str | None
    bias: str

    @property
    def layers(self) -> frozenset[int] | None:
        """Numbers of the layers that are adapted; None: all."""
        return self.chosen.layers

    def targets(self, name: str) -> bool:
        """Whether the layer of that name is adapted."""
        return self.chosen.chooses(name)

    def outside(self, name: str) -> bool:
        """Whether an embedding or the output layer is adapted: only where it is named."""
        return self.chosen.names_outside(name)

    def saves(self, name: str) -> bool:
        """Whether a copy of that module is trained as a whole."""
        return self.chosen.saves(name)

    def trains(self, name: str, adapted: bool) -> bool:
        """Whether a parameter is a trained bias, of a layer that is `adapted` or not (`_mark_only_adapters_as_trainable`)."""
        return name.rpartition(".")[2] == "bias" and (self.bias == "all" or (self.bias == "only" and adapted))

    @abstractmethod
    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        """The adapted layer."""

    def embed(self, build: Builder, name: str, module: Embedding, rows: int, size: int) -> Module:
        """The adapted embedding; `InvalidJob` where PEFT has none."""
        raise Contradiction(f"only lora adapts an embedding: leave {name} out", "training.adapter.targets")

    def weight(self, build: Builder, name: str, tensor: Tensor, used: int) -> Weight:
        """A weight outside linear layers; see `Builder.weight`."""
        return Weight(tensor)

    def join(self, build: Builder, place: str, size: int, norm: Module | None) -> Join:
        """What adds a block's input to its output; see `Builder.join`."""
        return Residual(norm)

    def root(self, build: Builder, model: Forward) -> Forward:
        """The finished model's forward pass."""
        return model


def dense(module: Module) -> Dense:
    """The layer with its weight, for methods that compute with that."""
    if not isinstance(module, Dense):
        raise NotModelled("this method is not modelled over layers of this kind yet; lora is", "training.adapter.type")
    return cast(Dense, module)


def refuse_conv1d(name: str, module: Module) -> None:
    """Raise `InvalidJob` for a layer that PEFT has some methods not for."""
    if isinstance(module, Conv1D):
        raise Contradiction(
            f"PEFT has this method for linear layers only, and {name} is a Conv1D: write lora", "training.adapter.type"
        )
