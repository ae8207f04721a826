"""The optimizer that a job names."""

from __future__ import annotations

from collections.abc import Callable

from estimator.contract.job import Training
from estimator.contract.job.optimizer import STATES
from estimator.families.parameter import Parameter
from estimator.tape.dtypes import BY_NAME
from estimator.tape.tape import Form, Tape
from estimator.training.optimizers import adafactor, lion, muon
from estimator.training.optimizers.adam import ADAM, ADAMAX, NADAM, RADAM
from estimator.training.optimizers.base import Optimizer, Step, alike, in_place
from estimator.training.optimizers.blocks import bitsandbytes, torchao
from estimator.training.optimizers.precisions import any_precision, transformer_engine
from estimator.training.optimizers.preconditioned import shampoo, soap
from estimator.training.optimizers.projected import apollo, galore
from estimator.training.optimizers.squares import ADADELTA, ADAGRAD, RMSPROP

_IN_PLACE: dict[str, Step] = {"foreach": in_place, "fused": in_place, "forloop": in_place}

TORCH: dict[str, tuple[int, dict[str, Step]]] = {
    "adamw": (2, ADAM),
    "adam": (2, ADAM),
    "sgd": (0, _IN_PLACE),
    "sgd-momentum": (1, _IN_PLACE),
    "adagrad": (1, ADAGRAD),
    "adadelta": (2, ADADELTA),
    "adamax": (2, ADAMAX),
    "nadam": (2, NADAM),
    "radam": (2, RADAM),
    "rmsprop": (1, RMSPROP),
}
"""torch.optim's optimizers that treat every element alike: tensors kept per parameter, of its size and type, and their steps."""

OTHERS: dict[str, Callable[[frozenset[str], int], Optimizer]] = {
    "galore-adamw": galore,
    "apollo": lambda matrices, rank: apollo(matrices, rank, by_channel=True),
    "apollo-mini": lambda matrices, rank: apollo(matrices, rank, by_channel=False),
    "shampoo": lambda matrices, rank: shampoo(),
    "soap": lambda matrices, rank: soap(),
}
"""Optimizers of one library each; of those that project gradients, the rank."""


def optimizer(training: Training, matrices: frozenset[str], embeddings: frozenset[str]) -> Optimizer:
    """The optimizer of a job. `matrices`, `embeddings`: weights of the layers' linear layers, and of embeddings."""
    name, by = training.optimizer, training.optimizer_implementation
    assert by is not None
    if by == "bitsandbytes":
        return bitsandbytes(name, embeddings if training.optimizer_wide_embeddings else frozenset())
    if by == "torchao":
        return torchao(name)
    if by in STATES:
        dtype = BY_NAME[training.optimizer_states or STATES[by]]
        return any_precision(name, dtype) if by == "llama-cookbook" else transformer_engine(name, dtype)
    if name == "adafactor":
        if by == "transformers":
            return Optimizer(name, adafactor.kept_in_fp32, adafactor.TRANSFORMERS)
        return Optimizer(name, adafactor.kept, adafactor.TORCH[by])
    if by == "lion-pytorch":
        return Optimizer(name, alike(1), lion.step)
    if name in OTHERS:
        return OTHERS[name](matrices, training.optimizer_rank or 1)
    if name == "muon":
        return _split(Optimizer(name, alike(1), muon.step), _torch("adamw", by), matrices)
    return _torch(name, by)


def _torch(name: str, implementation: str) -> Optimizer:
    """A fused Adam or AdaGrad counts its steps on the GPU, one number per parameter; the others do so on the host.

    AdaGrad makes its states when it is made (torch/optim/adagrad.py, `__init__`), all others at a parameter's first gradient.
    """
    moments, steps = TORCH[name]
    counts = implementation == "fused" and not name.startswith("sgd")
    return Optimizer(name, alike(moments, counter=counts), steps[implementation], first=name == "adagrad")


def _split(of_matrices: Optimizer, rest: Optimizer, matrices: frozenset[str]) -> Optimizer:
    """Two optimizers, one after the other: one for the layers' matrices, one for all else."""

    def chosen(parameter: Parameter) -> bool:
        return parameter.name in matrices and len(parameter.local.shape) == 2

    def kept(parameter: Parameter) -> list[Form]:
        return (of_matrices if chosen(parameter) else rest).kept(parameter)

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        parts: tuple[tuple[Optimizer, Callable[[Parameter], bool]], ...] = (
            (of_matrices, chosen),
            (rest, lambda parameter: not chosen(parameter)),
        )
        for part, belongs in parts:
            if members := [p for p in parameters if belongs(p)]:
                part.step(tape, members)

    return Optimizer(of_matrices.name, kept, step)
