"""IA³ as PEFT applies it: a trained vector that a layer's output is multiplied by, or its input.

peft 0.21, tuners/ia3/layer.py, `Linear.forward`.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.tape.pointwise import mul, mul_scalar, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape
from estimator.training.methods import Method


@dataclass(frozen=True, slots=True)
class Ia3(Method):
    """`feedforward`: the ends of the names of layers whose input is multiplied."""

    feedforward: tuple[str, ...]

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        before = name.endswith(self.feedforward) if self.feedforward else False
        shape = (1, inputs) if before else (outputs, 1)
        vector = build.parameter(name + ".ia3_l", shape, self.dtype, trainable=True)
        return _Multiplied(module, vector, before)


class _Multiplied:
    def __init__(self, base: Module, vector: Tensor, before: bool):
        self.base, self.vector, self.before = base, vector, before

    def __call__(self, x: Tensor) -> Tensor:
        scaling = mul_scalar(reshape(self.vector, (-1,)))
        if self.before:
            wide = to(x, self.vector.dtype)
            between = to(mul(wide, scaling), x.dtype)
            return self.base(between)
        result = self.base(x)
        return to(mul(result, scaling), result.dtype)
