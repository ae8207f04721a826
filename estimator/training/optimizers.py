"""Optimizers: the states they keep per parameter, and the temporaries of one step in each of torch's implementations.

A step's events depend only on the parameters' shapes, so it is played on the tape directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from estimator import dtypes
from estimator.families.build import Parameter
from estimator.tape.tape import OPTIMIZER_STATE, Slot, Tape
from estimator.tape.tensor import Tensor, empty

State = list[Tensor]
Step = Callable[[Tape, list[Parameter]], None]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """`moments`: tensors kept per parameter, of its size and type. `counter`: whether a step count lives on the GPU."""

    name: str
    moments: int
    counter: bool
    step: Step

    def states(self, tape: Tape, parameters: Iterable[Parameter]) -> list[State]:
        """Allocate what the optimizer keeps between steps, where the parameters lie that it updates."""
        states = []
        with tape.counting(OPTIMIZER_STATE):
            for parameter in parameters:
                tape.enter(parameter.slot)
                local = parameter.local
                state = [empty(local.tape, local.shape, local.dtype, self.name) for _ in range(self.moments)]
                if self.counter:
                    state.append(empty(local.tape, (), dtypes.float32, self.name))
                states.append(state)
            tape.enter(None)
        return states


def _in_place(tape: Tape, parameters: list[Parameter]) -> None:
    """Everything is updated in place: fused kernels, and SGD in every implementation."""


def _adam_foreach(tape: Tape, parameters: list[Parameter]) -> None:
    """Multi-tensor Adam takes the square roots of all second moments of one type at once: one more set of parameters.

    torch/optim/adam.py, `_multi_tensor_adam`: `exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)`, a variable that
    holds the roots of one type until those of the next are there.
    """
    held: list[tuple[Slot | None, Tensor]] = []
    for _, group in groupby(sorted(parameters, key=_dtype_name), key=_dtype_name):
        roots = []
        for parameter in group:
            tape.enter(parameter.slot)
            local = parameter.local
            roots.append((parameter.slot, empty(local.tape, local.shape, local.dtype, "_foreach_sqrt")))
        tape.enter(None)  # the layers' next round begins
        _release(tape, held)
        held = roots
    _release(tape, held)


def _release(tape: Tape, held: list[tuple[Slot | None, Tensor]]) -> None:
    while held:
        tape.enter(held[-1][0])
        held.pop()
    tape.enter(None)


def _adam_forloop(tape: Tape, parameters: list[Parameter]) -> None:
    """One parameter at a time: a root and its quotient, the quotient kept until the next parameter's is there.

    torch/optim/adam.py, `_single_tensor_adam`: `denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)`.
    """
    denominator = None
    for parameter in _neighbours(parameters):
        local = parameter.local
        root = empty(local.tape, local.shape, local.dtype, "sqrt")
        quotient = empty(local.tape, local.shape, local.dtype, "div")
        del root
        denominator = quotient
        del quotient
    del denominator


def _neighbours(parameters: list[Parameter]) -> Iterator[Parameter]:
    """All parameters in order, of what is folded the first two: then every two that follow each other in the model do so here."""
    for outer, inside in groupby(parameters, key=lambda p: p.slot and (p.slot.parent or p.slot)):
        members: list[Parameter] = []
        for slot, same in groupby(inside, key=lambda p: p.slot):
            members += [*same] * (min(2, slot.repeat) if slot else 1)
        yield from members * (min(2, outer.repeat) if outer is not None and outer is not members[-1].slot else 1)


def _dtype_name(parameter: Parameter) -> str:
    return parameter.local.dtype.name


_ADAM = {"foreach": _adam_foreach, "fused": _in_place, "forloop": _adam_forloop}

NAMES = ("adamw", "adam", "sgd", "sgd-momentum")
IMPLEMENTATIONS = tuple(_ADAM)


def optimizer(name: str, implementation: str) -> Optimizer:
    """The optimizer of that name (one of `NAMES`) in one of torch's `IMPLEMENTATIONS`.

    A fused Adam counts its steps where the parameter lies, one number for each; the others do so on the host.
    """
    if name in ("adamw", "adam"):
        return Optimizer(name, 2, implementation == "fused", _ADAM[implementation])
    return Optimizer(name, 1 if name == "sgd-momentum" else 0, False, _in_place)
