"""A model's parameters as they are loaded and saved: whole, in the type that they are trained in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from estimator.families.build import Builder
from estimator.families.parameter import Parameter
from estimator.parallel.zero import Zero
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.training.badam import BlockCopies


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor of a checkpoint."""

    name: str
    dtype: DType
    shape: Shape

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


def base(build: Builder) -> list[Saved]:
    """The model itself, without an adapter."""
    return [*_saved(build, [p for p in build.parameters if build.adapter is None or not p.trainable])]


def adapter(build: Builder) -> list[Saved]:
    """What an adapter trains."""
    return [*_saved(build, [p for p in build.parameters if build.adapter is not None and p.trainable])]


def _saved(build: Builder, parameters: list[Parameter]) -> Iterator[Saved]:
    """Each layer's by itself; the name of its stack and its number stand in for what the model's own classes call it."""
    for p in parameters:
        dtype = saved_dtype(build, p)
        for i in range(p.times):
            yield Saved(p.name if p.slot is None else f"model.layers.{i}.{p.name}", dtype, build.sharding.full_shape(p))


def saved_dtype(build: Builder, parameter: Parameter) -> DType:
    """The type that a parameter is saved in."""
    return parameter.tensor.dtype if isinstance(build.sharding, Zero | BlockCopies) else parameter.local.dtype
