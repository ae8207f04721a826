"""Matrices in batches: made of the numbers above their diagonals, put on one diagonal, and systems of equations solved."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.tensor import Tensor, alias, empty, unary


def upper_triangles(numbers: Tensor, places: Sequence[Tensor], size: int) -> Tensor:
    """Zeros [rows, size, size] whose parts above the diagonal are set: `zeros[:, i, j] = numbers`. Saves the places."""
    node = record("IndexPutBackward", (numbers,), tuple(places), lambda g, *_: empty(g.tape, before, g.dtype, "index"))
    before = numbers.shape
    return attach(node, empty(numbers.tape, (before[0], size, size), numbers.dtype, "zeros"))


def solve_right(a: Tensor, b: Tensor) -> Tensor:
    """X of X A = B, all [count, n, n] and of float32. Saves A, X, and A's factors with their pivots.

    aten/src/ATen/native/BatchLinearAlgebra.cpp, `_linalg_solve_ex`; FunctionsManual.cpp, `linalg_solve_backward`. What the
    kernels need within is not counted.
    """

    def backward(g: Tensor, a: Tensor, factors: Tensor, pivots: Tensor, x: Tensor) -> tuple[Gradient, Gradient]:
        grad_b = unary("linalg_lu_solve", g)
        product = unary("matmul", x)
        return unary("neg", product), grad_b

    node = record("LinalgSolveExBackward", (a, b), (a,), backward)
    out = attach(node, empty(a.tape, b.shape, b.dtype, "_linalg_solve_ex"))
    factors = empty(a.tape, a.shape, a.dtype, "_linalg_solve_ex")
    pivots = empty(a.tape, a.shape[:-1], dtypes.int32, "_linalg_solve_ex")
    info = empty(a.tape, a.shape[:-2], dtypes.int32, "_linalg_solve_ex")
    if node is not None:
        node.save((factors, pivots, out.detach()))
    del info
    return out


def block_diag(blocks: Sequence[Tensor]) -> Tensor:
    """Square blocks on the diagonal of a matrix; their gradients are views of its gradient."""
    size, count = blocks[0].shape[0], len(blocks)
    side = size * count
    node = record("BlockDiagBackward", blocks, (), lambda g: [alias(g, (size, size), (side, 1)) for _ in range(count)])
    return attach(node, empty(blocks[0].tape, (side, side), blocks[0].dtype, "block_diag"))
