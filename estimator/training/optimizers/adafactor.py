"""Adafactor: of a matrix' second moments only the means of its rows and of its columns, in torch and in transformers."""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.multi_tensor import Lists
from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.layout import Shape
from estimator.tape.slots import Slot
from estimator.tape.tape import Form, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers.base import SCALAR, Step, by_type, like, neighbours

Held = list[tuple[Slot | None, Tensor]]


def kept(parameter: Parameter) -> list[Form]:
    """A vector keeps its second moments; all else a row and a column per matrix (torch/optim/_adafactor.py, `_init_group`)."""
    shape, dtype = parameter.local.shape, parameter.local.dtype
    if len(shape) < 2:
        return [(shape, dtype)]
    return [(rows(shape), dtype), (columns(shape), dtype)]


def kept_in_fp32(parameter: Parameter) -> list[Form]:
    """Forms of the second moments, by row and column or for a vector whole, in float32 whatever the weights are; and the
    weights' norm (transformers/optimization.py, `step`)."""
    shape = parameter.local.shape
    forms = [(shape,)] if len(shape) < 2 else [(shape[:-1],), (shape[:-2] + shape[-1:],)]
    return [*((form, dtypes.float32) for (form,) in forms), SCALAR]


def rows(shape: Shape) -> Shape:
    """One number per row."""
    return (*shape[:-1], 1)


def columns(shape: Shape) -> Shape:
    """One number per column."""
    return (*shape[:-2], 1, shape[-1])


def _means(shape: Shape) -> Shape:
    """One number per matrix."""
    return (*shape[:-2], 1, 1)


def _foreach(tape: Tape, parameters: list[Parameter]) -> None:
    """torch/optim/_adafactor.py, `_multi_tensor_adafactor`: matrices and vectors are groups of their own.

    `updates` is a second name of `var_estimates` and holds them until the next group's are done.
    """
    lists = Lists(tape)
    updates: Held = []
    for group in (part for of_type in by_type(parameters) for part in _by_dimensions(of_type)):
        _norms(lists, group)
        if len(group[0].local.shape) > 1:
            _drop(lists, group, "norm", rows)
            _drop(lists, group, "norm", columns)
            estimates = lists.new("matmul", group)
            _drop(lists, group, "mean", _means)
        else:
            _drop(lists, group, "_foreach_mul")
            estimates = lists.new("clone", group)
        lists.free(updates)
        updates = estimates
        _norms(lists, group)
    lists.free(updates)


def _by_dimensions(group: list[Parameter]) -> list[list[Parameter]]:
    """Matrices apart from vectors, what comes first first."""
    first = len(group[0].local.shape) > 1
    parts = [[p for p in group if (len(p.local.shape) > 1) is kind] for kind in (first, not first)]
    return [part for part in parts if part]


def _drop(lists: Lists, group: list[Parameter], operation: str, shape: Callable[[Shape], Shape] = lambda shape: shape) -> None:
    """A list that is gone at once."""
    made = lists.new(operation, group, shape)
    lists.free(made)


def _norms(lists: Lists, group: list[Parameter]) -> None:
    """A norm of each tensor, read by the host one after the other."""
    for p in group:
        lists.tape.enter(p.slot or lists.outside)
        norm = empty(lists.tape, (), p.local.dtype, "norm")
        del norm
    lists.tape.enter(lists.outside)


def _forloop(tape: Tape, parameters: list[Parameter]) -> None:
    """torch/optim/_adafactor.py, `_single_tensor_adafactor`: `update` is a second name of `var_estimate`, held for a round."""
    row_mean = col_mean = squared = estimate = update = None
    for p in neighbours(parameters):
        shape, dtype = p.local.shape, p.local.dtype
        norm = empty(tape, (), dtype, "norm")
        del norm
        if len(shape) > 1:
            row_mean = empty(tape, rows(shape), dtype, "norm")
            col_mean = empty(tape, columns(shape), dtype, "norm")
            estimate = like(p, "matmul")
            mean = empty(tape, _means(shape), dtype, "mean")
            del mean
        else:
            squared = like(p, "mul")
            estimate = like(p, "clone")
        update = estimate
        norm = empty(tape, (), dtype, "norm")
        del norm
    del row_mean, col_mean, squared, estimate, update


def _transformers(tape: Tape, parameters: list[Parameter]) -> None:
    """transformers/optimization.py, `Adafactor.step`, with a learning rate of its own, as the Trainer makes it.

    Gradients and weights in half precision are copied to float32, one parameter at a time.
    """
    grad = weight = update = None
    for p in neighbours(parameters):
        shape, half = p.local.shape, p.local.dtype.itemsize == 2
        grad = None  # first the gradient itself has this name, then its copy
        if half:
            grad = like(p, "_to_copy", dtypes.float32)
        weight = None
        if half:
            weight = like(p, "_to_copy", dtypes.float32)
        _root_mean_square(tape)  # replaces the one that is kept
        squared = like(p, "pow", dtypes.float32)
        shifted = like(p, "add", dtypes.float32)
        del squared
        update = shifted
        del shifted
        if len(shape) > 1:
            for form in (shape[:-1], shape[:-2] + shape[-1:]):
                mean = empty(tape, form, dtypes.float32, "mean")
                del mean
            estimate = _approximate(tape, shape)
        else:
            estimate = like(p, "rsqrt", dtypes.float32)
        update = estimate
        del estimate
        _clip(tape)
        negative = like(p, "neg", dtypes.float32)
        del negative
    del grad, weight, update


def _root_mean_square(tape: Tape) -> None:
    norm = empty(tape, (), dtypes.float32, "norm")
    mean = empty(tape, (), dtypes.float32, "div")
    del norm, mean


def _clip(tape: Tape) -> None:
    """`update.div_((self._rms(update) / group["clip_threshold"]).clamp_(min=1.0))`."""
    norm = empty(tape, (), dtypes.float32, "norm")
    mean = empty(tape, (), dtypes.float32, "div")
    del norm
    over = empty(tape, (), dtypes.float32, "div")
    del mean, over


def _approximate(tape: Tape, shape: Shape) -> Tensor:
    """`_approx_sq_grad`: the product of rows and columns."""
    mean = empty(tape, (*shape[:-2], 1), dtypes.float32, "mean")
    row = empty(tape, shape[:-1], dtypes.float32, "div")
    del mean
    column = empty(tape, shape[:-2] + shape[-1:], dtypes.float32, "rsqrt")
    out = empty(tape, shape, dtypes.float32, "mul")
    del row, column
    return out


TORCH: dict[str, Step] = {"foreach": _foreach, "forloop": _forloop}
TRANSFORMERS: Step = _transformers
