"""LoHa and LoKr as PEFT applies them: a second weight for each layer, made anew in each pass (peft 0.21, loha and lokr/layer.py).

Neither works on the layer's input first: both make a matrix as large as the layer's own weight, of few parameters, and that is
saved for the gradient of the layer's input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.tape.autocast import cast_all
from estimator.tape.autograd import attach, record
from estimator.tape.matmul import linear, mm, transposed
from estimator.tape.pointwise import add, mul, mul_scalar, to
from estimator.tape.tensor import Tensor, binary, unary
from estimator.tape.views import reshape
from estimator.training.methods import Method, refuse_conv1d


@dataclass(frozen=True, slots=True)
class LoHa(Method):
    """The product, number by number, of two matrices of a `rank`."""

    rank: int

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        refuse_conv1d(name, module)
        shapes = {
            "w1_a": (outputs, self.rank),
            "w1_b": (self.rank, inputs),
            "w2_a": (outputs, self.rank),
            "w2_b": (self.rank, inputs),
        }
        parts = [build.parameter(f"{name}.hada_{part}", shape, self.dtype, trainable=True) for part, shape in shapes.items()]
        return _Added(module, lambda: _hadamard(*parts))


@dataclass(frozen=True, slots=True)
class LoKr(Method):
    """The Kronecker product of a small matrix and a larger one, which is itself a product of a `rank` where that is less."""

    rank: int

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        refuse_conv1d(name, module)
        (above, rows), (before, columns) = factors(outputs), factors(inputs)

        def part(end: str, *shape: int) -> Tensor:
            return build.parameter(f"{name}.lokr_{end}", shape, self.dtype, trainable=True)

        small = part("w1", above, before)
        if self.rank >= max(rows, columns) / 2:
            large = part("w2", rows, columns)
            return _Added(module, lambda: _kronecker(small, large))
        left, right = part("w2_a", rows, self.rank), part("w2_b", self.rank, columns)
        return _Added(module, lambda: _kronecker(small, mm(*cast_all(left, right))))


def factors(size: int) -> tuple[int, int]:
    """The two factors of a number that are nearest to each other, the smaller first (`factorization` of lokr/layer.py)."""
    smaller = next(n for n in range(int(size**0.5), 0, -1) if size % n == 0)
    return smaller, size // smaller


class _Added:
    """base(x) + x D^T, where D is made in each pass."""

    def __init__(self, base: Module, make: Callable[[], Tensor]):
        self.base, self.make = base, make

    def __call__(self, x: Tensor) -> Tensor:
        result = self.base(x)
        result = add(result, self._change(x))
        return to(result, x.dtype)

    def _change(self, x: Tensor) -> Tensor:
        weight = self.make()
        adapted = to(x, weight.dtype)
        return linear(adapted, weight)


def _hadamard(w1_a: Tensor, w1_b: Tensor, w2_a: Tensor, w2_b: Tensor) -> Tensor:
    """scale * (w1_a w1_b) * (w2_a w2_b), in one autograd function that saves the four alone (`HadaWeight`)."""

    def backward(g: Tensor, w1_a: Tensor, w1_b: Tensor, w2_a: Tensor, w2_b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        g = unary("mul", g)
        part = binary("mul", g, mm(w2_a, w2_b))
        grad_w1_a = mm(part, transposed(w1_b))
        grad_w1_b = mm(transposed(w1_a), part)
        part = binary("mul", g, mm(w1_a, w1_b))
        grad_w2_a = mm(part, transposed(w2_b))
        grad_w2_b = mm(transposed(w2_a), part)
        return grad_w1_a, grad_w1_b, grad_w2_a, grad_w2_b

    inputs, tape = (w1_a, w1_b, w2_a, w2_b), w1_a.tape
    node = record("HadaWeight", inputs, inputs, backward)
    graph, tape.grad_enabled = tape.grad_enabled, False
    out = mul_scalar(mul(mm(*cast_all(w1_a, w1_b)), mm(*cast_all(w2_a, w2_b))))
    tape.grad_enabled = graph
    return reshape(attach(node, out), out.shape)


def _kronecker(small: Tensor, large: Tensor) -> Tensor:
    """scale * (small x large), whose product is as large as the layer's weight (`make_kron`)."""
    (a, b), (c, d) = small.shape, large.shape
    product = mul(reshape(small, (a, 1, b, 1)), reshape(large, (1, c, 1, d)))
    return reshape(mul_scalar(reshape(product, (a * c, b * d))), (a * c, b * d))
