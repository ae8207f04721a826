"""Products of rows that are sorted by group with one matrix per group: the experts of a mixture (`torch._grouped_mm`).

How many rows each group has is not known, and does not matter: all of them lie in one tensor. Autocast does not know the
operation and leaves its operands alone (it is in no list of aten/src/ATen/autocast_mode.h).
"""

from __future__ import annotations

from estimator.contract.errors import Contradiction
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tape import GROUPED
from estimator.tape.tensor import Tensor, alias, empty

WIDE = "autocast does not know the experts' products: they run in float32, and take its bytes and its time"
ROW = 16
"""Bytes that a row must be a multiple of (aten/src/ATen/native/GroupedMMUtils.h, `check_valid_strides_and_return_transposed`)."""


def grouped_linear(x: Tensor, weight: Tensor, offsets: Tensor, transposed: bool = False) -> Tensor:
    """x [rows, in] times the weight of each row's group, which is [groups, out, in], or `transposed` [groups, in, out].

    transformers casts x to the weight's type (integrations/moe.py, `_grouped_mm`).
    """
    if x.tape.autocast and weight.dtype is not x.tape.autocast.dtype:
        x.tape.remarks[WIDE] = None
    if not transposed:
        groups, outputs, inputs = weight.shape
        node = record("TransposeBackward", (weight,), (), lambda g: alias(g, (groups, outputs, inputs)))
        weight = attach(node, alias(weight, (groups, inputs, outputs)))
    return _grouped_mm(to(x, weight.dtype), weight, offsets)


def _grouped_mm(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Saves each operand that the other's gradient needs, and the offsets.

    On Hopper and Blackwell bfloat16 has a kernel of its own; all else multiplies group by group into the same result
    (aten/src/ATen/native/cuda/GroupedBlas.cpp). Gradients: `_grouped_mm_mat1_backward`, `_grouped_mm_mat2_backward`.
    """
    (rows, inputs), outputs = x.shape, weight.shape[2]
    for size in (inputs, outputs):
        if size * x.dtype.itemsize % ROW:
            raise Contradiction(f"experts of width {size} cannot be multiplied: rows must be multiples of {ROW} bytes", "model")
    shape, groups = weight.shape, weight.shape[0]

    def backward(g: Tensor, w: Gradient, x: Gradient, *_: Tensor) -> tuple[Gradient, Gradient]:
        grad_w = None if x is None else _product(g, shape, (groups, inputs, outputs, rows // groups))
        grad_x = None if w is None else _product(g, (rows, inputs), (groups, rows // groups, inputs, outputs))
        return grad_x, grad_w

    saved = (weight if x.requires_grad else None, x if weight.requires_grad else None, offsets)
    node = record("GroupedMmBackward", (x, weight), saved, backward)
    return attach(node, _product(x, (rows, outputs), (groups, rows // groups, outputs, inputs)))


def _product(like: Tensor, shape: Shape, sizes: tuple[int, int, int, int]) -> Tensor:
    """A product for each group, of these (groups, m, n, k): as if all had as many rows."""
    groups, m, n, k = sizes
    like.tape.multiply(m, n, k, like.dtype, groups, GROUPED)
    return empty(like.tape, shape, like.dtype, "_grouped_mm")
