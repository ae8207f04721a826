"""What a family has that can be counted only: its modules declare their parameters, and have no forward pass.

Its spec says `runs = False`, so that no job comes as far as to call what is missing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from estimator.contract.errors import NotModelled
from estimator.families.build import Builder, Kind
from estimator.families.heads import Batch, Head
from estimator.families.model_output import Held
from estimator.families.spec import ModelSpec
from estimator.tape.dtypes import DType
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor


class Counted:
    """A model whose parameters are declared. `held`: what declaring them gave, such as buffers, and what lives with the model."""

    def __init__(self, spec: ModelSpec, held: object = None):
        self.spec, self.held = spec, held

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        raise NotModelled(self.spec.refusal, "model")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        raise NotModelled(self.spec.refusal, "model")


def counted(declare: Callable[[Any, Builder], object]) -> Head:
    """The head of a model whose parameters `declare` makes on the builder."""

    def head(spec: ModelSpec, build: Builder) -> Counted:
        return Counted(spec, declare(spec, build))

    return head


def stack(build: Builder, kinds: int | Sequence[Kind], declare: Callable[[Kind], object], label: str = "layers") -> None:
    """A stack of layers whose parameters `declare` makes: so many, or one per kind in the sequence."""

    def layer(kind: Kind) -> Callable[..., Any]:
        declare(kind)
        return _run

    build.layers(kinds, layer, label)


def _run(*inputs: Tensor) -> Tensor:
    raise NotModelled("a layer of which only the parameters are modelled was run", "model")
