"""GaLore and APOLLO: AdamW on gradients that are projected to a lower rank, of the layers' matrices; plain AdamW on the rest."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.tape import Form, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers.base import Optimizer, like, neighbours

GAP = 200
"""Steps after which a projection is made anew (`update_proj_gap`)."""


def reduced(shape: Shape, rank: int) -> Shape:
    """A projected gradient: the longer side stays (`proj_type` std, galore_torch/galore_projector.py, `project`)."""
    rows, columns = shape
    return (rows, min(rank, columns)) if rows >= columns else (min(rank, rows), columns)


def projection(shape: Shape, rank: int) -> Shape:
    """The matrix that projects the shorter side."""
    short = min(shape)
    return (min(rank, short), short)


def _in_groups(parameters: list[Parameter], matrices: frozenset[str]) -> Iterator[Parameter]:
    """First what is not projected, then what is: the groups in which GaLore's script and the Trainer hand them over."""
    for wanted in (False, True):
        yield from neighbours([p for p in parameters if is_projected(p, matrices) is wanted])


def is_projected(parameter: Parameter, matrices: frozenset[str]) -> bool:
    """Whether it is the weight of a linear layer of the model's layers."""
    return parameter.name in matrices and len(parameter.local.shape) == 2


def galore(matrices: frozenset[str], rank: int) -> Optimizer:
    """galore-torch 1.0 (galore_torch/adamw.py and galore_projector.py), in a step that keeps its projections."""

    def kept(p: Parameter) -> list[Form]:
        shape, dtype = p.local.shape, p.local.dtype
        if not is_projected(p, matrices):
            return [(shape, dtype)] * 2
        short = min(shape)
        held = (short, short) if dtype is dtypes.float32 else projection(shape, rank)  # a view holds all singular vectors
        return [(reduced(shape, rank), dtype)] * 2 + [(held, dtype)]

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        grad = denominator = normed = None
        for p in _in_groups(parameters, matrices):
            grad = None
            moment = p.local.shape
            if is_projected(p, matrices):
                moment = reduced(moment, rank)
                grad = empty(tape, moment, p.local.dtype, "matmul")
            denominator = empty(tape, moment, p.local.dtype, "sqrt")
            normed = empty(tape, moment, p.local.dtype, "div")
            if is_projected(p, matrices):
                normed = _project_back(tape, p)
        del grad, denominator, normed

    return Optimizer(
        "galore-adamw",
        kept,
        step,
        remark=f"each {GAP}th step makes GaLore's projections anew: a singular value decomposition in float32, not counted here",
    )


def _project_back(tape: Tape, p: Parameter) -> Tensor:
    """`full_rank_grad * self.scale`."""
    full = like(p, "matmul")
    scaled = like(p, "mul")
    del full
    return scaled


def apollo(matrices: frozenset[str], rank: int, by_channel: bool) -> Optimizer:
    """apollo-torch 1.0 with random projections (apollo_torch/apollo.py); `by_channel`: or the gradient as a whole.

    It keeps the norm of the last scaled gradient in addition to moments and projection.
    """

    def kept(p: Parameter) -> list[Form]:
        shape, dtype = p.local.shape, p.local.dtype
        if not is_projected(p, matrices):
            return [(shape, dtype)] * 2
        short = min(shape)
        return [(reduced(shape, rank), dtype)] * 2 + [((rank, short), dtype), ((), dtype)]

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        grad = denominator = normed = factor = scaled = norm = None
        for p in _in_groups(parameters, matrices):
            dtype = p.local.dtype
            grad = None
            moment = p.local.shape
            if is_projected(p, matrices):
                moment = reduced(moment, rank)
                grad = empty(tape, moment, dtype, "matmul")
            denominator = empty(tape, moment, dtype, "sqrt")
            normed = empty(tape, moment, dtype, "div")
            if is_projected(p, matrices):
                factor = _factor(tape, p, by_channel)
                scaled = like(p, "mul")
                norm = empty(tape, (), dtype, "norm")
                shifted = empty(tape, (), dtype, "add")
                ratio = empty(tape, (), dtype, "div")
                del shifted, ratio
                limited = like(p, "div")
                scaled = limited
                del limited
                fresh = empty(tape, (), dtype, "div")  # takes the place of the norm that is kept
                del fresh
                normed = scaled
        del grad, denominator, normed, factor, scaled, norm

    return Optimizer("apollo" if by_channel else "apollo-mini", kept, step)


def _factor(tape: Tape, p: Parameter, by_channel: bool) -> Tensor:
    """`grad_scaling_factor`: a norm by a norm."""
    shape: Shape = (max(p.local.shape),) if by_channel else ()
    above = empty(tape, shape, p.local.dtype, "norm")
    below = empty(tape, shape, p.local.dtype, "norm")
    shifted = empty(tape, shape, p.local.dtype, "add")
    del below
    factor = empty(tape, shape, p.local.dtype, "div")
    del above, shifted
    return factor
