"""Lion as lion-pytorch has it: one moment, and an update made of a copy of it."""

from __future__ import annotations

from estimator.families.parameter import Parameter
from estimator.tape.tape import Tape
from estimator.training.optimizers.base import like, neighbours


def step(tape: Tape, parameters: list[Parameter]) -> None:
    """lion_pytorch/lion_pytorch.py, `update_fn`: `exp_avg.clone().mul_(beta1).add(grad, alpha=1 - beta1).sgn_()`."""
    for p in neighbours(parameters):
        copy = like(p, "clone")
        update = like(p, "add")
        del copy, update
