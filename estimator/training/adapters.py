"""LoRA as PEFT applies it: two small trainable matrices beside a frozen linear layer (peft 0.21, tuners/lora)."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.dtypes import DType
from estimator.families.build import Builder
from estimator.families.modules import Linear, Module
from estimator.tape.pointwise import add, dropout, mul_scalar, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import clone

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True)
class Lora:
    """`names`: the ends of the adapted layers' names, or None for every linear layer but the output layer."""

    rank: int
    names: tuple[str, ...] | None
    dtype: DType
    dropout: float
    four_bit: bool = False

    def targets(self, name: str) -> bool:
        """PEFT's rule: a target names a module, or the end of its path from a dot on."""
        return self.names is None or any(name == end or name.endswith("." + end) for end in self.names)

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        down = build.parameter(name + ".lora_A.weight", (self.rank, inputs), self.dtype, trainable=True)
        up = build.parameter(name + ".lora_B.weight", (outputs, self.rank), self.dtype, trainable=True)
        return _LoraLinear(module, Linear(down, None), Linear(up, None), self)


class _LoraLinear:
    """base(x) + scale * B(A(dropout(x))). Over a 4-bit layer PEFT copies the base result first."""

    def __init__(self, base: Module, lora_a: Linear, lora_b: Linear, config: Lora):
        self.base, self.lora_a, self.lora_b, self.config = base, lora_a, lora_b, config

    def __call__(self, x: Tensor) -> Tensor:
        result = self.base(x)
        dtype = result.dtype
        if self.config.four_bit:
            result = clone(result)
        adapted = to(x, self.lora_a.weight.dtype)
        if self.config.four_bit:
            update = to(mul_scalar(self.lora_b(self.lora_a(dropout(adapted, self.config.dropout)))), dtype)
            return add(result, update)
        result = add(result, mul_scalar(self.lora_b(self.lora_a(dropout(adapted, self.config.dropout)))))
        return to(result, dtype)
