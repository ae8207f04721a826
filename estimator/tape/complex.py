"""Pairs of numbers as complex ones: views, and a product with a constant."""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.layout import Shape, normalized
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, alias, binary, unary
from estimator.tape.views import contiguous, transpose, unsqueeze


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


def rotate(q: Tensor, k: Tensor, turns: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of [batch, heads, tokens, size] in float32, by complex numbers for each token, as torchtitan has it
    (models/llama3/model/model.py, `apply_rotary_emb`)."""
    q, k = transpose(q, 1, 2), transpose(k, 1, 2)
    pairs_q = as_complex(to(q, dtypes.float32))
    pairs_k = as_complex(to(k, dtypes.float32))
    each = unsqueeze(unsqueeze(turns, 1), 0)
    turned_q = as_real(multiply_by(pairs_q, each))
    turned_k = as_real(multiply_by(pairs_k, each))
    rotated_q = to(turned_q, q.dtype)
    rotated_k = to(turned_k, k.dtype)
    return transpose(rotated_q, 1, 2), transpose(rotated_k, 1, 2)
