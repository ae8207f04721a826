"""What a job makes of a model's layers: caches, weights in few bits, adapters, parts that are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from estimator.families.modules import Embedding, Join, Module
from estimator.families.parameter import Weight
from estimator.families.sharding import Forward
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor

if TYPE_CHECKING:
    from estimator.families.build import Builder


class Cache(Protocol):
    """What one attention layer remembers of the tokens before."""

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys and values; those of all tokens."""


class Quantization(Protocol):
    """Stores the weights of linear layers in few bits; `routers`: also those that choose a mixture's experts."""

    @property
    def routers(self) -> bool: ...

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        """A frozen linear layer with weight [out, in]."""


@runtime_checkable
class QuantizesExperts(Protocol):
    """Stores the experts' weights of a mixture, which are no linear layers, in few bits, too."""

    def experts(self, build: Builder, name: str, weight: Shape, used: int) -> Weight:
        """A frozen weight per expert, [experts, .., ..], of which a token uses `used`."""


class Trained(Protocol):
    """Which of the model's own parameters are trained, where not all are."""

    @property
    def layers(self) -> frozenset[int] | None: ...

    @property
    def remembers(self) -> bool:
        """Whether the optimizer has states of all parameters."""

    def chosen(self, layer: int) -> bool:
        """Whether something of a layer is trained."""

    def trains(self, name: str, chosen: bool | None) -> bool:
        """Whether a parameter is trained, in a layer that is `chosen` or not, or (None) outside the layers."""


class Adapter(Protocol):
    """Adds trainable parameters to linear layers, and to some modules and weights outside them."""

    @property
    def of_peft(self) -> bool:
        """Whether PEFT puts it on, which trains a copy of a classification's head."""

    @property
    def layers(self) -> frozenset[int] | None:
        """Numbers of the layers that are adapted; None: all."""

    def targets(self, name: str) -> bool:
        """Whether the layer of that name is adapted."""

    def outside(self, name: str) -> bool:
        """Whether an embedding or the output layer of that name is adapted."""

    def saves(self, name: str) -> bool:
        """Whether a copy of the module of that name is trained as a whole (PEFT's `modules_to_save`)."""

    def trains(self, name: str, adapted: bool) -> bool:
        """Whether the model's own parameter of that name is trained, of a layer that is `adapted` or not."""

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        """The adapted layer."""

    def embed(self, build: Builder, name: str, module: Embedding, rows: int, size: int) -> Module:
        """The adapted embedding."""

    def weight(self, build: Builder, name: str, tensor: Tensor, used: int) -> Weight:
        """The weight of that name, adapted if it is to be; see `Builder.weight`."""

    def join(self, build: Builder, place: str, size: int, norm: Module | None) -> Join:
        """What adds a block's input to its output; see `Builder.join`."""

    def root(self, build: Builder, model: Forward) -> Forward:
        """The finished model's forward pass."""
