"""Matrix products: linear layers and batched products, with their FLOPs.

Under autocast the operands are cast first, the last argument of torch's function before the others: that is the order in
which the compiler evaluates the casts of aten/src/ATen/autocast_mode.h. See `autocast`.
"""

from __future__ import annotations

from math import prod

from estimator.tape.autocast import cast_all
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import Shape
from estimator.tape.pointwise import add, add_
from estimator.tape.selective import made
from estimator.tape.tensor import Tensor, alias, empty, unary
from estimator.tape.views import expand, reshape


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b over the last dimension of `x`; `weight` is [out, in].

    One product over all rows; but where those cannot be told apart without a copy, and the weight is frozen, one per sequence
    (aten/src/ATen/native/LinearAlgebra.cpp, `should_fold`). A bias is part of the product only where `x` is contiguous, or a
    matrix; else it is added to it in place, but in a tensor of its own while a selective checkpoint looks on (Linear.cpp).
    """
    x, weight, *biases = cast_all(x, weight, *([] if bias is None else [bias]))
    frozen = not weight.requires_grad
    weight = transposed(weight)
    matrix = len(x.shape) == 2
    if frozen and not matrix and x.strides is not None and not _folds(x):
        out = matmul(x, expand(weight, (*x.shape[:-2], *weight.shape)))
    else:
        flat = x if matrix else reshape(x, (-1, x.shape[-1]))
        within = matrix or x.strides is None
        out = addmm(biases[0], flat, weight) if biases and within else mm(flat, weight)
        out = out if matrix else reshape(out, (*x.shape[:-1], weight.shape[1]))
        biases = [] if within else biases
    if not biases:
        return out
    return (add if x.tape.selection is not None else add_)(out, biases[0])


def times_transposed(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`. Autocast keeps no cast of a view of a weight, so that each use casts it anew; what is cast lives until the
    product is there."""
    rows, columns = cast_all(x, transposed(weight))
    return reshape(mm(reshape(rows, (-1, x.shape[-1])), columns), (*x.shape[:-1], columns.shape[1]))


def times(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.matmul(x, weight)` of [..., tokens, in] and [in, out]: one product over all rows. What is cast lives as above."""
    rows, columns = cast_all(x, weight)
    return reshape(mm(reshape(rows, (-1, x.shape[-1])), columns), (*x.shape[:-1], columns.shape[1]))


def _folds(x: Tensor) -> bool:
    """Whether all dimensions but the last can be seen as one."""
    strides = x.element_strides()
    return all(strides[i] == strides[i + 1] * x.shape[i + 1] for i in range(len(x.shape) - 2))


def conv1d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """GPT-2's `Conv1D`: x W + b over the last dimension of `x`; `weight` is [in, out]."""
    flat = reshape(x, (-1, x.shape[-1]))
    out = mm(*cast_all(flat, weight)) if bias is None else addmm(*cast_all(bias, flat, weight))
    return reshape(out, (*x.shape[:-1], weight.shape[1]))


def transposed(weight: Tensor) -> Tensor:
    """weight.t(). A product's gradient for its second operand comes in that operand's layout, so this one stays a view."""
    node = record("TBackward", (weight,), (), lambda g: alias(g, g.shape[::-1]))
    return attach(node, alias(weight, weight.shape[::-1]))


def mm(a: Tensor, b: Tensor) -> Tensor:
    """[m, k] x [k, n]. Saves each operand that the other's gradient needs."""
    saved = (b if a.requires_grad else None, a if b.requires_grad else None)
    node = record("MmBackward", (a, b), saved, _mm_backward)
    return attach(node, _product(a, b, "mm"))


def _mm_backward(g: Tensor, b: Gradient, a: Gradient) -> tuple[Gradient, Gradient]:
    grad_b = None if a is None else _product(alias(a, a.shape[::-1]), g, "mm")
    grad_a = None if b is None else _product(g, alias(b, b.shape[::-1]), "mm")
    return grad_a, grad_b


def addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """bias + a b. Saves what `mm` saves."""
    saved = (b if a.requires_grad else None, a if b.requires_grad else None)
    wanted = bias.requires_grad

    def backward(g: Tensor, b: Gradient, a: Gradient) -> tuple[Gradient, Gradient, Gradient]:
        grad_a = None if b is None else _product(g, alias(b, b.shape[::-1]), "mm")
        grad_b = None if a is None else _product(alias(a, a.shape[::-1]), g, "mm")
        return (g if wanted else None), grad_a, grad_b

    return attach(record("AddmmBackward", (bias, a, b), saved, backward), _product(a, b, "addmm"))


def _product(a: Tensor, b: Tensor, operation: str) -> Tensor:
    (m, k), n = a.shape, b.shape[1]

    def make() -> Tensor:
        a.tape.multiply(m, n, k, a.dtype, source=a.storage.index)
        return empty(a.tape, (m, n), a.dtype, operation)

    return made(a.tape, operation, make)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Product of [..., m, k] and [..., k, n] with equal leading dimensions."""
    a, b = cast_all(a, b)
    *batch, m, k = a.shape
    n, count = b.shape[-1], prod(batch)
    left = reshape(expand(a, (*batch, m, k)), (count, m, k))
    right = reshape(expand(b, (*batch, k, n)), (count, k, n))
    return reshape(bmm(left, right), (*batch, m, n))


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """[count, m, k] x [count, k, n]."""
    return _bmm(*cast_all(a, b))


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """Saves each operand that the other's gradient needs."""
    saved = (b if a.requires_grad else None, a if b.requires_grad else None)
    (count, m, k), n = a.shape, b.shape[2]

    def backward(g: Tensor, b: Gradient, a: Gradient) -> tuple[Gradient, Gradient]:
        grad_b = None if a is None else _batched(g, (count, k, n), m)
        grad_a = None if b is None else _batched(g, (count, m, k), n)
        return grad_a, grad_b

    return attach(record("BmmBackward", (a, b), saved, backward), _batched(a, (count, m, n), k))


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, scaled: bool = True) -> Tensor:
    """bias + number * a b, for [batch, m, k] and [batch, k, n]. Saves what `bmm` saves.

    Each gradient is multiplied by the number in a tensor of its own, unless that is one, and nothing `scaled`
    (FunctionsManual.cpp, `maybe_multiply`).
    """
    bias, a, b = cast_all(bias, a, b)
    saved = (b if a.requires_grad else None, a if b.requires_grad else None)
    (count, m, k), n = a.shape, b.shape[2]
    wanted = bias.requires_grad

    def backward(g: Tensor, b: Gradient, a: Gradient) -> tuple[Gradient, Gradient, Gradient]:
        grad_a = None if b is None else _batched(g, (count, m, k), n)
        grad_a = unary("mul", grad_a) if scaled and grad_a is not None else grad_a
        grad_b = None if a is None else _batched(g, (count, k, n), m)
        grad_b = unary("mul", grad_b) if scaled and grad_b is not None else grad_b
        return (g if wanted else None), grad_a, grad_b

    return attach(record("BaddbmmBackward", (bias, a, b), saved, backward), _batched(a, (count, m, n), k, "baddbmm"))


def _batched(like: Tensor, shape: Shape, inner: int, operation: str = "bmm") -> Tensor:
    def make() -> Tensor:
        count, m, n = shape
        like.tape.multiply(m, n, inner, like.dtype, count, "bmm")
        return empty(like.tape, shape, like.dtype, operation)

    return made(like.tape, operation, make)
