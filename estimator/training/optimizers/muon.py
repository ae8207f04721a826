"""Muon: matrices of the layers by their orthogonalised momentum, everything else by AdamW."""

from __future__ import annotations

from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers.base import like, neighbours

ROUNDS = 5
"""Newton-Schulz iterations (`DEFAULT_NS_STEPS`)."""


def step(tape: Tape, parameters: list[Parameter]) -> None:
    """torch/optim/_muon.py, `_single_tensor_muon`: `update` is held until the next parameter's is there."""
    update: Tensor | None = None
    for p in neighbours(parameters):
        update = like(p, "lerp")
        update = _orthogonal(tape, p, update)
    del update


def _orthogonal(tape: Tape, p: Parameter, gradient: Tensor) -> Tensor:
    """`_zeropower_via_newtonschulz`, in bfloat16 on the shorter side; its argument lives as long as it runs."""
    rows, columns = p.local.shape
    short = min(rows, columns)
    ortho = gradient if gradient.dtype is dtypes.bfloat16 else like(p, "_to_copy", dtypes.bfloat16)
    norm = empty(tape, (), dtypes.bfloat16, "norm")
    least = empty(tape, (), dtypes.bfloat16, "clamp")
    del norm, least
    gram = polynomial = None
    for _ in range(ROUNDS):
        gram = empty(tape, (short, short), dtypes.bfloat16, "matmul")
        polynomial = empty(tape, (short, short), dtypes.bfloat16, "addmm")
        ortho = like(p, "addmm", dtypes.bfloat16)
    del gram, polynomial
    return ortho
