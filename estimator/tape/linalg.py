"""Matrices in batches: made of the numbers above their diagonals, put on one diagonal, and systems of equations solved."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.layout import contiguous, normalized
from estimator.tape.matmul import matmul
from estimator.tape.tensor import Tensor, alias, empty, output, unary
from estimator.tape.views import transpose


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


def solve_triangular(a: Tensor, b: Tensor) -> Tensor:
    """X of A X = B for lower triangles A [..., n, n] and B [..., n, k]: its columns lie together. Saves A and X.

    aten/src/ATen/native/BatchLinearAlgebra.cpp, `linalg_solve_triangular_out`; FunctionsManual.cpp,
    `linalg_solve_triangular_backward`. What the kernel needs within is not counted, nor its FLOPs, as in torch.
    """
    wanted = a.requires_grad, b.requires_grad

    def backward(g: Tensor, a: Tensor, x: Tensor) -> tuple[Gradient, Gradient]:
        grad_b = _solved(a, g)
        grad_a = _lower_of_product(grad_b, x) if wanted[0] else None
        return grad_a, grad_b if wanted[1] else None

    return attach(record("LinalgSolveTriangularBackward", (a, b), (a,), backward), _solved(a, b), save=True)


def _solved(a: Tensor, b: Tensor) -> Tensor:
    """Of the shape of `b`, column by column."""
    *batch, rows, columns = b.shape
    steps = contiguous((*batch, columns, rows))
    return output("linalg_solve_triangular", (a, b), b.shape, b.dtype, normalized(b.shape, (*steps[:-2], 1, rows)))


def _lower_of_product(g: Tensor, x: Tensor) -> Tensor:
    product = matmul(g, transpose(x, -2, -1))
    product = unary("neg", product)
    return unary("tril", product)


def block_diag(blocks: Sequence[Tensor]) -> Tensor:
    """Square blocks on the diagonal of a matrix; their gradients are views of its gradient."""
    size, count = blocks[0].shape[0], len(blocks)
    side = size * count
    node = record("BlockDiagBackward", blocks, (), lambda g: [alias(g, (size, size), (side, 1)) for _ in range(count)])
    return attach(node, empty(blocks[0].tape, (side, side), blocks[0].dtype, "block_diag"))
