"""Adam and what is close to it in torch.optim: two moments, and a step whose temporaries depend on the implementation."""

from __future__ import annotations

from estimator.families.multi_tensor import Lists
from estimator.families.parameter import Parameter
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.training.optimizers.base import Step, by_type, in_place, like, multi_tensor, neighbours


def _one_by_one(first: str, second: str) -> Step:
    """One parameter at a time: a tensor, and another of it that is kept until the next parameter's is there.

    torch/optim/adam.py, `_single_tensor_adam`: `denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)`; nadam.py,
    `_single_tensor_nadam`: `denom = exp_avg_sq.div(bias_correction2).sqrt()`.
    """

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        denominator = None
        for parameter in neighbours(parameters):
            made = like(parameter, first)
            result = like(parameter, second)
            del made
            denominator = result
            del result
        del denominator

    return step


def _adamax_foreach(tape: Tape, parameters: list[Parameter]) -> None:
    """The gradients' absolute values; the name of the list is rebound before the next type's are made.

    torch/optim/adamax.py, `_multi_tensor_adamax`: `grouped_grads = torch._foreach_abs(grouped_grads)`.
    """
    lists = Lists(tape)
    held: list[tuple[Slot | None, Tensor]] = []
    for group in by_type(parameters):
        lists.free(held)
        held = lists.new("_foreach_abs", group)
    lists.free(held)


def _adamax(tape: Tape, parameters: list[Parameter]) -> None:
    """torch/optim/adamax.py, `_single_tensor_adamax`: `grad.abs().add_(eps)`, an argument that is gone after its call."""
    for parameter in neighbours(parameters):
        norm = like(parameter, "abs")
        del norm


def _radam(tape: Tape, parameters: list[Parameter]) -> None:
    """torch/optim/radam.py, `_single_tensor_radam`, from the sixth step on, when it rectifies (`rho_t > 5`)."""
    corrected = None
    for parameter in neighbours(parameters):
        corrected = like(parameter, "div")
        scaled = like(parameter, "mul")
        root = like(parameter, "sqrt")
        inverse = like(parameter, "reciprocal")
        rate = like(parameter, "mul")
        del inverse, root
        update = like(parameter, "mul")
        del scaled, rate
        rectified = like(parameter, "mul")
        del update, rectified
    del corrected


_ROOTS = multi_tensor("_foreach_sqrt")
"""Roots of all second moments of a type at once: one more set of parameters, held until those of the next type are there.

torch/optim/adam.py, `_multi_tensor_adam`: `exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)`; nadam.py does the
same, and radam.py in its `buffer`.
"""

ADAM: dict[str, Step] = {"foreach": _ROOTS, "fused": in_place, "forloop": _one_by_one("sqrt", "div")}
ADAMAX: dict[str, Step] = {"foreach": _adamax_foreach, "forloop": _adamax}
NADAM: dict[str, Step] = {"foreach": _ROOTS, "forloop": _one_by_one("div", "sqrt")}
RADAM: dict[str, Step] = {"foreach": _ROOTS, "forloop": _radam}
