"""The optimizer's step inside backward: a parameter is updated as soon as its gradient is complete, which then goes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from estimator.families.parameter import Parameter
from estimator.tape.tape import TEMPORARY, Tape
from estimator.training.optimizers.base import Optimizer


def step_in_backward(tape: Tape, optimizer: Optimizer, parameters: list[Parameter]) -> None:
    """Let each parameter have an optimizer of its own, which steps when autograd has its gradient.

    `Tensor.register_post_accumulate_grad_hook`, as torchtune, GaLore's layer-wise optimizers and torch's own tutorial use it.
    """
    for parameter in parameters:
        parameter.tensor.on_grad = partial(_update, tape, optimizer, parameter)


def _update(tape: Tape, optimizer: Optimizer, parameter: Parameter) -> None:
    with tape.counting(TEMPORARY):
        optimizer.step(tape, [replace(parameter, slot=None)])  # without a slot, it is where backward is
    parameter.tensor.grad = None
