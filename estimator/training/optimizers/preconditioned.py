"""Shampoo and SOAP: a matrix of second moments for each side of a matrix, and what is derived from it.

Workspaces inside the decompositions of cuSOLVER are not counted.
"""

from __future__ import annotations

from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.tape import Form, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers.base import Optimizer, like, neighbours

WIDEST = 10_000
"""The longest side that SOAP preconditions (`max_precondition_dim`)."""
GAP = 10
"""Steps after which SOAP makes its bases anew (`precondition_frequency`)."""


def shampoo() -> Optimizer:
    """pytorch-optimizer 4.1 (pytorch_optimizer/optimizer/shampoo.py), `Shampoo` with its defaults.

    For every side, of a vector too, a square matrix and its inverse root, which each step makes anew; and the last update.
    """

    def kept(p: Parameter) -> list[Form]:
        shape, dtype = p.local.shape, p.local.dtype
        return [form for side in shape for form in [((side, side), dtype)] * 2] + [(shape, dtype)]

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        grad = turned = None
        for p in neighbours(parameters):
            shape, dtype = p.local.shape, p.local.dtype
            grad = None
            for number, side in enumerate(shape):
                if number:
                    grad = like(p, "contiguous")
                turned = grad  # `grad_t` is a view of it
                _inverse_root(tape, side, dtype is not dtypes.float32)
                grad = like(p, "matmul")
        del grad, turned

    return Optimizer(
        "shampoo", kept, step, remark="the decompositions of each of Shampoo's steps take workspaces that are not counted here"
    )


def _inverse_root(tape: Tape, side: int, half: bool) -> None:
    """`compute_power_svd`, and what is copied from it (pytorch_optimizer/optimizer/utils/matrix.py)."""
    square: Shape = (side, side)
    wide = empty(tape, square, dtypes.float32, "_to_copy") if half else None
    left = empty(tape, square, dtypes.float32, "linalg_svd")
    values = empty(tape, (side,), dtypes.float32, "linalg_svd")
    right = empty(tape, square, dtypes.float32, "linalg_svd")
    del wide
    scaled = empty(tape, square, dtypes.float32, "mul")
    root = empty(tape, square, dtypes.float32, "matmul")
    del scaled
    narrow = empty(tape, square, dtypes.bfloat16, "_to_copy") if half else None
    del left, values, right, root, narrow


def soap() -> Optimizer:
    """pytorch-optimizer 4.1 (pytorch_optimizer/optimizer/soap.py), `SOAP` with its defaults, in a step that keeps its bases."""

    def kept(p: Parameter) -> list[Form]:
        shape, dtype = p.local.shape, p.local.dtype
        sides = shape if len(shape) > 1 else ()
        return [(shape, dtype)] * 2 + [form for side in sides if side <= WIDEST for form in [((side, side), dtype)] * 2]

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        projected: Tensor | None = None
        denominator = moment = normed = None
        for p in neighbours(parameters):
            projected = _project(tape, p, None)
            square = like(p, "square")
            del square
            denominator = like(p, "sqrt")
            moment = _project(tape, p, None)
            normed = _project(tape, p, like(p, "div"))
            _outer_products(tape, p)
        del projected, denominator, moment, normed

    return Optimizer(
        "soap", kept, step, remark=f"each {GAP}th step makes SOAP's bases anew: decompositions in float32, not counted here"
    )


def _project(tape: Tape, p: Parameter, out: Tensor | None) -> Tensor | None:
    """`project`: one product for each side that has a basis; what is given lives until the first is there."""
    for side in p.local.shape if len(p.local.shape) > 1 else ():
        if side <= WIDEST:
            out = like(p, "tensordot")
    return out


def _outer_products(tape: Tape, p: Parameter) -> None:
    """`update_pre_conditioner`: the gradient by itself, once for each side."""
    product = None
    for side in p.local.shape if len(p.local.shape) > 1 else ():
        if side <= WIDEST:
            product = empty(tape, (side, side), p.local.dtype, "tensordot")
    del product
