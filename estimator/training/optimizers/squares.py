"""Optimizers of torch.optim that divide by an average or a sum of squared gradients: AdaGrad, Adadelta, RMSprop."""

from __future__ import annotations

from estimator.families.parameter import Parameter
from estimator.tape.tape import Tape
from estimator.training.optimizers.base import Step, in_place, like, multi_tensor, neighbours


def _root(tape: Tape, parameters: list[Parameter]) -> None:
    """One root, kept until the next parameter's is there.

    torch/optim/adagrad.py, `_single_tensor_adagrad`: `std = state_sum.sqrt().add_(eps)`; rmsprop.py: `avg`.
    """
    root = None
    for parameter in neighbours(parameters):
        root = like(parameter, "sqrt")
    del root


def _adadelta(tape: Tape, parameters: list[Parameter]) -> None:
    """torch/optim/adadelta.py, `_single_tensor_adadelta`: `std` and `delta`."""
    std = delta = None
    for parameter in neighbours(parameters):
        std = like(parameter, "add")
        delta = like(parameter, "add")
    del std, delta


ADAGRAD: dict[str, Step] = {"foreach": multi_tensor("_foreach_sqrt", "_foreach_mul"), "fused": in_place, "forloop": _root}
"""torch/optim/adagrad.py, `_multi_tensor_adagrad`: `std`, and `numerator` for all gradients times the learning rate."""
ADADELTA: dict[str, Step] = {"foreach": multi_tensor("_foreach_add", "_foreach_add"), "forloop": _adadelta}
"""torch/optim/adadelta.py, `_multi_tensor_adadelta`: `std` and `deltas`."""
RMSPROP: dict[str, Step] = {"foreach": multi_tensor("_foreach_sqrt"), "forloop": _root}
"""torch/optim/rmsprop.py, `_multi_tensor_rmsprop`: `avg`."""
