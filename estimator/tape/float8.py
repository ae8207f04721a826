"""Products in fp8 with scales that are made anew each time: torchao's `Float8Linear` (0.18).

What is kept is in the model's type; each product casts its operands (float8/float8_linear.py, `matmul_with_hp_or_float8_args`).
e4m3 and e5m2 take a byte alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, alias, binary, empty, unary
from estimator.tape.views import contiguous, reshape, transpose

SCALED_PRODUCT = "scaled_mm"
ALIGNMENT = 16
"""What each size of a product is a multiple of (torch 2.13, aten/src/ATen/native/cuda/ScaledBlas.cpp)."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """`by_row`: a scale for each row or column of an operand, a power of two, not one for all of it. `wide`: the weight's
    gradient is no product in fp8."""

    by_row: bool = False
    wide: bool = False


SCALINGS = {"tensorwise": Scaling(), "rowwise": Scaling(True), "rowwise_with_gw_hp": Scaling(True, True)}
"""By the name of torchao's recipe (float8/config.py, `from_recipe_name`)."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor's codes and their scale or scales."""

    codes: Tensor
    scale: Tensor

    def turned(self) -> _Operand:
        return _Operand(transpose(self.codes, 0, 1), transpose(self.scale, 0, 1) if self.scale.shape else self.scale)

    def flat(self) -> _Operand:
        """The operand as a matrix [rows, columns]: its last dimension is the one that is multiplied."""
        scale = reshape(self.scale, (-1, 1)) if self.scale.shape else self.scale
        return _Operand(reshape(self.codes, (-1, self.codes.shape[-1])), scale)


def scaled_linear(x: Tensor, weight: Tensor, scaling: Scaling) -> Tensor:
    """x times `weight` [in, out], a view of what is held as [out, in]. Saves both, as they are.

    Backward casts them again and the gradient once for each product, and has all of that until it is done.
    """
    outputs, by_row = weight.shape[1], scaling.by_row

    def backward(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        rows = reshape(g, (-1, outputs))
        gradient = _cast(rows, scaling, 1 if by_row else None)
        codes = _cast(weight, scaling, 1 if by_row and not scaling.wide else None)
        to_input = reshape(_product(gradient, codes.turned(), g.dtype), x.shape)
        inputs = reshape(x, (-1, x.shape[-1]))
        if scaling.wide:
            (tokens, outs), ins = rows.shape, inputs.shape[1]
            g.tape.multiply(outs, ins, tokens, g.dtype)
            to_weight = empty(g.tape, (outs, ins), g.dtype, "mm")
        else:
            gradient_again = _cast(rows, scaling, 0 if by_row else None)
            inputs_cast = _cast(inputs, scaling, 0 if by_row else None)
            to_weight = _product(gradient_again.turned(), inputs_cast, g.dtype)
        return to_input, alias(to_weight, to_weight.shape[::-1], (1, to_weight.shape[1]))

    node = record("Float8Matmul", (x, weight), (), backward)
    given = _cast(x.detach(), scaling, len(x.shape) - 1 if by_row else None).flat()
    codes = _cast(weight.detach(), scaling, 0 if by_row else None)
    out = _product(given, codes, x.dtype, fast=True)
    if node is not None:
        node.save((x, weight))  # once it has run, so that a recomputation that ends with it runs it, too
    return attach(node, alias(out, (*x.shape[:-1], outputs)))


def _cast(x: Tensor, scaling: Scaling, dim: int | None) -> _Operand:
    """Codes of a tensor, by way of two copies in float32 (`_ToFloat8ConstrFunc`, `to_fp8_saturated`); one scale, or one for
    each place outside `dim`."""
    scale = _scale(x, scaling, dim)
    scaled = unary("mul", to(x, dtypes.float32))
    clamped = unary("clamp", scaled)
    return _Operand(unary("_to_copy", clamped, dtypes.float8_e4m3fn), scale)


def _scale(x: Tensor, scaling: Scaling, dim: int | None) -> Tensor:
    """What the largest number is made the type's largest by (float8_utils.py, `tensor_to_scale`)."""
    shape: Shape = () if dim is None else (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    largest = _largest(x, shape)
    wide = unary("_to_copy", largest, dtypes.float64)
    clamped = unary("clamp", wide)
    scale = unary("mul", unary("reciprocal", clamped))
    del clamped
    scale = unary("_to_copy", scale, dtypes.float32)
    return unary("exp2", unary("floor", unary("log2", scale))) if scaling.by_row else scale


def _largest(x: Tensor, shape: Shape) -> Tensor:
    magnitudes = unary("abs", x)
    return empty(x.tape, shape, magnitudes.dtype, "amax")


def _product(a: _Operand, b: _Operand, dtype: DType, fast: bool = False) -> Tensor:
    """a [m, k] times b [k, n], laid out by rows and by columns, copied where they are not (float8_ops.py, `float8_mm`).

    Scales of rows are multiplied into the result afterwards, but in the kernel where it may add up fast; that kernel's
    result is in bf16.
    """
    rows, columns = contiguous(a.codes), contiguous(transpose(b.codes, 0, 1))
    (m, k), n, tape = rows.shape, columns.shape[0], rows.tape
    by_row = bool(a.scale.shape)
    scale = b.scale if b.scale.shape or not by_row else empty(tape, (1, n), dtypes.float32, "repeat")
    scales = [unary("reciprocal", a.scale), unary("reciprocal", scale)]
    after: Tensor | None = None
    if by_row and not fast:
        after = binary("mul", scales[0], scales[1])
        scales = [empty(tape, (), dtypes.float32, "new_ones") for _ in scales]
    tape.multiply(m, n, k, rows.dtype, operation=SCALED_PRODUCT)
    out = empty(tape, (m, n), dtypes.bfloat16 if by_row else dtype, SCALED_PRODUCT)
    widened = to(out, dtype)
    del after, scales
    return widened
