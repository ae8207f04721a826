"""Pairs of numbers as complex ones: views, and a product with a constant."""

from __future__ import annotations

from estimator import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.layout import Shape, normalized
from estimator.tape.tensor import Tensor, alias, binary, unary
from estimator.tape.views import contiguous


def as_complex(x: Tensor) -> Tensor:
    """Consecutive pairs of the last dimension, float32, as complex numbers; a view. The gradient is made contiguous first."""
    return attach(record("ViewAsComplexBackward", (x,), (), lambda g: _as_real(contiguous(g))), _as_complex(x))


def as_real(x: Tensor) -> Tensor:
    """Complex numbers as consecutive pairs of float32; a view. The gradient is made contiguous first."""
    return attach(record("ViewAsRealBackward", (x,), (), lambda g: _as_complex(contiguous(g))), _as_real(x))


def multiply_by(x: Tensor, constant: Tensor) -> Tensor:
    """x times a complex tensor without gradient. Saves that, whose conjugate becomes a tensor in backward."""
    node = record("MulBackward", (x,), (constant,), lambda g, c: binary("mul", g, unary("conj", c)))
    return attach(node, binary("mul", x, constant))


def _as_complex(x: Tensor) -> Tensor:
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    *strides, _ = x.element_strides()
    return _viewed(x, shape, (*(s // 2 for s in strides), 1), dtypes.complex64)


def _as_real(x: Tensor) -> Tensor:
    shape = (*x.shape[:-1], x.shape[-1] * 2)
    *strides, _ = x.element_strides()
    return _viewed(x, shape, (*(s * 2 for s in strides), 1), dtypes.float32)


def _viewed(x: Tensor, shape: Shape, strides: Shape, dtype: dtypes.DType) -> Tensor:
    view = alias(x, shape, normalized(shape, strides))
    view.dtype = dtype
    return view
