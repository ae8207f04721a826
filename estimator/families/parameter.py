"""What a model holds: its parameters, and numbers that are none."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.tape.dtypes import DType
from estimator.tape.slots import Slot
from estimator.tape.tensor import Tensor


@dataclass(slots=True)
class Parameter:
    """One parameter of the model.

    `tensor` is what the model computes with; `local` what this rank keeps and optimises: the same, or a shard of it.
    `count` is what a person counts: packed 4-bit weights hold two to a byte. `active` is how much of it one token uses: all,
    but of a mixture's experts only those that it is sent to.
    """

    name: str
    tensor: Tensor
    local: Tensor
    slot: Slot | None
    count: int
    active: int
    tokens: bool = False
    """Whether it is the input embedding of tokens."""
    trainable: bool = False
    """Whether the optimizer has it. A frozen one may get a gradient all the same, as a part of a flat tensor (FSDP1)."""
    wanted: bool = False
    """Whether it is handed to the optimizer, with a gradient (`trainable`) or without one."""
    part: str = ""
    """The path of the part that it is in, of a model of several parts; `layers.*` stands for the layers of a stack."""

    @property
    def path(self) -> str:
        """Its name with the path of its part."""
        return f"{self.part}.{self.name}" if self.part else self.name

    @property
    def times(self) -> int:
        """In how many layers the parameter occurs."""
        return self.slot.total if self.slot else 1

    @property
    def total(self) -> int:
        """Elements of the parameter in all layers."""
        return self.count * self.times


@dataclass(frozen=True, slots=True)
class Buffer:
    """Numbers that live with the model but are no parameters of it, where they are made."""

    name: str
    count: int
    dtype: DType
    slot: Slot | None

    @property
    def times(self) -> int:
        """In how many layers the buffer occurs."""
        return self.slot.total if self.slot else 1


class Weight:
    """A parameter that a module of its own kind uses, no linear layer: an adapter changes it while the module runs."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def __call__(self) -> Tensor:
        """What the module computes with."""
        return self.tensor

    def enter(self) -> None:
        """The module begins."""

    def leave(self) -> None:
        """The module has ended."""
