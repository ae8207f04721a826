"""VeRA as PEFT applies it: two frozen random matrices for the whole model, two trained vectors for each layer.

peft 0.21, tuners/vera: layer.py, `forward`; model.py, `_find_dim`: the matrices are as large as the widest layers ask for, and a
layer with fewer inputs or outputs uses a part of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.families.sharding import Forward
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, dropout, mul, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import narrow
from estimator.training.methods import Method


@dataclass
class Shared:
    """The matrices A [rank, inputs] and B [outputs, rank]; before they are made, the largest sizes that layers have needed so
    far."""

    inputs: int = 0
    outputs: int = 0
    matrices: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Vera(Method):
    """VeRA: two frozen random matrices of a `rank`, shared by all layers, and two trained vectors for each layer."""

    rank: int
    dropout: float
    shared: Shared = field(default_factory=Shared)

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        self.shared.inputs = max(self.shared.inputs, inputs)
        self.shared.outputs = max(self.shared.outputs, outputs)
        after = build.parameter(name + ".vera_lambda_b", (outputs,), self.dtype, trainable=True)
        between = build.parameter(name + ".vera_lambda_d", (self.rank,), self.dtype, trainable=True)
        return _VeraLinear(module, between, after, (inputs, outputs), self)

    def root(self, build: Builder, model: Forward) -> Forward:
        self.shared.matrices = (
            build.buffer("vera_A", (self.rank, self.shared.inputs), self.dtype),
            build.buffer("vera_B", (self.shared.outputs, self.rank), self.dtype),
        )
        return model


class _VeraLinear:
    """base(x) + b * B(d * A(dropout(x)))."""

    def __init__(self, base: Module, d: Tensor, b: Tensor, sizes: tuple[int, int], config: Vera):
        self.base, self.d, self.b, self.sizes, self.config = base, d, b, sizes, config

    def __call__(self, x: Tensor) -> Tensor:
        result = self.base(x)
        dtype = result.dtype
        assert self.config.shared.matrices is not None
        a, b = self.config.shared.matrices
        a, b = narrow(a, 1, self.sizes[0]), narrow(b, 0, self.sizes[1])
        adapted = to(x, self.d.dtype)
        dropped = dropout(adapted, self.config.dropout)  # held, as what follows, by `F.linear`'s call beside autocast's copy
        low = linear(dropped, a)
        del dropped
        low = mul(self.d, low)
        high = linear(low, b)
        del low
        high = mul(self.b, high)
        result = add(result, high)
        del high
        result = to(result, dtype)
        return to(result, x.dtype)
