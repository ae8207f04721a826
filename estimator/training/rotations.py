"""OFT and BOFT as PEFT applies them: a layer's input times an orthogonal matrix of blocks (peft 0.21, oft and boft/layer.py)."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.errors import Contradiction
from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.tape import dtypes
from estimator.tape.autocast import cast_all
from estimator.tape.einsum import einsum
from estimator.tape.linalg import block_diag, solve_right, upper_triangles
from estimator.tape.matmul import bmm, mm
from estimator.tape.pointwise import add, add_, add_scaled_, mul, mul_scalar, sub, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import expand, permute, repeat, reshape, select, transpose, unbind, unsqueeze
from estimator.training.methods import Method, dense, refuse_conv1d

TERMS = 5
"""Powers of the sum, from 0 on (`num_cayley_neumann_terms`)."""


@dataclass(frozen=True, slots=True)
class Oft(Method):
    """Blocks of a `size`, or so many `blocks`; `shared`: one block of parameters for all of a layer's. `neumann`: by a sum."""

    size: int
    blocks: int
    shared: bool
    neumann: bool

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        refuse_conv1d(name, module)
        given = divisor(inputs, self.blocks or self.size)
        blocks, size = (given, inputs // given) if self.blocks else (inputs // given, given)
        if size == 1:
            where = "training.adapter.blocks" if self.blocks else "training.adapter.block_size"
            raise Contradiction(
                f"blocks of one row of {name} turn nothing, and have nothing to train: write blocks of two or more", where
            )
        count = size * (size - 1) // 2
        trained = build.parameter(name + ".oft_R.weight", (1 if self.shared else blocks, count), self.dtype, trainable=True)
        places = [build.buffer(f"{name}.oft_R.{end}", (count,), dtypes.int64) for end in ("rows", "cols")]
        return _OftLinear(name, module, trained, places, blocks, size, self)


def divisor(inputs: int, asked: int) -> int:
    """The divisor of a layer's inputs that is nearest to a number, the lesser of two (`adjust_oft_parameters`)."""
    if asked >= inputs:
        return inputs
    return min((n for n in range(1, inputs + 1) if inputs % n == 0), key=lambda n: (abs(n - asked), n))


class _OftLinear:
    """base(x R), with the rows of x in blocks."""

    def __init__(self, name: str, base: Module, weight: Tensor, places: list[Tensor], blocks: int, size: int, config: Oft):
        self.name, self.base, self.weight, self.places = name, base, weight, places
        self.blocks, self.size, self.config = blocks, size, config

    def __call__(self, x: Tensor) -> Tensor:
        if len(x.shape) == 4:  # which `OFTRotationModule.forward` unfolds by a kernel of no size
            raise Contradiction(
                f"PEFT's OFT takes the four dimensions that {self.name} reads for those of a convolution, and fails: "
                "list targets without it",
                "training.adapter.targets",
            )
        rotated = self._rotated(to(x, self.weight.dtype))
        result = self.base(to(rotated, x.dtype))
        return to(result, x.dtype)

    def _rotated(self, x: Tensor) -> Tensor:
        rotation = self._rotation()
        blocks = reshape(x, (*x.shape[:-1], self.blocks, self.size))
        if self.config.shared:
            rotation = repeat(rotation, self.blocks)
        leading = "ab"[: len(x.shape) - 1]
        turned = einsum(f"{leading}rk,rkc->{leading}rc", blocks, rotation)
        out = reshape(turned, x.shape)
        return to(out, x.dtype)

    def _rotation(self) -> Tensor:
        """(1 - Q)⁻¹ (1 + Q) of a skew Q, or the first terms of its series, [blocks, size, size] (`_cayley_batch`)."""
        skew = upper_triangles(self.weight, self.places, self.size)
        skew = sub(skew, transpose(skew, 1, 2))
        if not self.config.neumann:
            return to(_cayley(skew), self.weight.dtype)
        eye = empty(skew.tape, (1, self.size, self.size), skew.dtype, "eye")
        total = repeat(eye, skew.shape[0])
        del eye
        total = add_scaled_(total, skew)
        power = bmm(skew, skew)
        total = add_scaled_(total, power)
        for _ in range(3, TERMS - 1):
            power = bmm(power, skew)
            total = add_scaled_(total, power)
        power = bmm(power, skew)
        return add_(total, power)


@dataclass(frozen=True, slots=True)
class Boft(Method):
    """Blocks of a `size`, and a factor for each output."""

    size: int

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        refuse_conv1d(name, module)
        if inputs % self.size:
            raise Contradiction(f"{self.size} does not divide the {inputs} inputs of {name}", "training.adapter.block_size")
        shape = (1, inputs // self.size, self.size, self.size)
        trained = build.parameter(name + ".boft_R", shape, self.dtype, trainable=True)
        factors = build.parameter(name + ".boft_s", (outputs, 1), self.dtype, trainable=True)
        order = build.buffer(name + ".boft_P", (1, inputs, inputs), dtypes.float32)
        return _BoftLinear(module, trained, factors, order)


class _BoftLinear:
    """base(x P R Pᵀ) * s, but for the bias; P, which puts the inputs in another order, is a whole matrix."""

    def __init__(self, base: Module, blocks: Tensor, factors: Tensor, order: Tensor):
        self.base, self.blocks, self.factors, self.order = base, blocks, factors, order
        self.bias = dense(base).bias

    def __call__(self, x: Tensor) -> Tensor:
        tape, side = x.tape, self.order.shape[1]
        eye = empty(tape, (side, side), x.dtype, "eye")
        ones = empty(tape, self.factors.shape, x.dtype, "ones")
        blocks = reshape(self.blocks, self.blocks.shape[1:])
        turned = _cayley_of(blocks)
        turned = reshape(reshape(turned, self.blocks.shape), self.blocks.shape[1:])
        diagonal = unsqueeze(block_diag(unbind(turned, 0)), 0)
        order = to(self.order, x.dtype)
        diagonal = to(diagonal, x.dtype)
        product = bmm(diagonal, permute(order, (0, 2, 1)))
        product = bmm(order, product)
        whole = select(product, 0)
        rotation = mm(*cast_all(whole, eye))
        del eye
        factors = mul(self.factors, ones)
        del ones
        rotation = to(rotation, x.dtype)
        rotated = _times(x, rotation)
        result = self.base(rotated)
        if self.bias is not None:
            result = sub(result, self.bias)
        result = mul(result, reshape(factors, (-1,)))
        if self.bias is not None:
            result = add(result, self.bias)
        return to(result, x.dtype)


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """`x @ matrix`, over the last dimension of x."""
    x, matrix = cast_all(x, matrix)
    return reshape(mm(reshape(x, (-1, x.shape[-1])), matrix), x.shape)


def _cayley_of(blocks: Tensor) -> Tensor:
    """The rotations of blocks of any numbers (`cayley_batch`)."""
    skew = mul_scalar(sub(blocks, transpose(blocks, 1, 2)))
    return to(_cayley(skew), blocks.dtype)


def _cayley(skew: Tensor) -> Tensor:
    """X of X (1 + Q) = 1 - Q, in float32."""
    identity = empty(skew.tape, skew.shape[1:], dtypes.float32, "eye")
    identity = expand(unsqueeze(identity, 0), skew.shape)
    return solve_right(add(identity, skew), sub(identity, skew))
