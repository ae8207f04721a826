"""Which optimizers go with the rest of a job: refused is what does not exist, and what is not known."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Training
from estimator.contract.job.optimizer import IMPLEMENTATIONS, RANKS, STATES, Implementation
from estimator.parallel.strategies import Strategy, strategy_of
from estimator.training.optimizers.blocks import WITHOUT_BF16

MATRICES = ("muon", "galore-adamw", "apollo", "apollo-mini", "shampoo", "soap")
"""Optimizers that treat a matrix as one, and the layers' matrices apart from the rest."""
TORCH = ("foreach", "fused", "forloop")
"""torch's own implementations."""


def check_optimizer(job: Job) -> None:
    """Raise `InvalidJob` for an optimizer that cannot be, and `NotModelled` for one that is not known."""
    training = job.training
    name, by = training.optimizer, training.optimizer_implementation
    known = IMPLEMENTATIONS[name]
    if by is None or by not in known:
        raise Contradiction(
            f"there is no {by} implementation of {name}; write {' or '.join(known)}", "training.optimizer_implementation"
        )
    if training.optimizer_rank is not None and name not in RANKS:
        raise Contradiction(f"{name} projects nothing: a rank is for {', '.join(RANKS)}", "training.optimizer_rank")
    if training.optimizer_wide_embeddings and not (by == "bitsandbytes" and name.endswith("-8bit")):
        raise Contradiction(
            f"{name} ({by}) has no 8-bit states of bitsandbytes: leave it out", "training.optimizer_wide_embeddings"
        )
    if by == "bitsandbytes" and name.removesuffix("-8bit") in WITHOUT_BF16 and training.precision == "bf16-true":
        raise Contradiction(
            f"bitsandbytes has no kernel for bf16 gradients of {name}: write adamw-8bit, or another precision",
            "training.optimizer",
        )
    if name in MATRICES and training.adapter:
        raise NotModelled(f"{name} of an adapter's matrices is not modelled yet; use adamw", "training.optimizer")
    if name in MATRICES and training.precision == "16-mixed":
        raise NotModelled(f"{name} with a scaled loss is not modelled yet; write bf16-mixed", "training.optimizer")
    if training.precision.startswith("megatron") and name not in ("adamw", "adam", "sgd", "sgd-momentum"):
        raise NotModelled(f"{name} with {training.precision} is not modelled yet; write adamw or sgd", "training.optimizer")
    _check_states(training, by)
    strategy = strategy_of(job)
    _check_strategy(training, strategy)
    if training.optimizer_in_backward:
        _check_in_backward(training, strategy)


def _check_states(training: Training, by: Implementation) -> None:
    if training.optimizer_states is not None and by not in STATES:
        raise Contradiction(
            f"{training.optimizer} ({by}) has no moments of a chosen type: leave it out, or write adamw of {' or '.join(STATES)}",
            "training.optimizer_states",
        )
    if by in STATES and training.precision.startswith("megatron"):
        raise NotModelled(
            "Megatron's optimizer with precisions of its own asks for its distributed optimizer, which is not modelled yet",
            "training.optimizer_implementation",
        )


def _check_strategy(training: Training, strategy: Strategy) -> None:
    name, by, known = training.optimizer, training.optimizer_implementation, strategy.optimizers
    if known is None or by in known.beside_torch:
        return
    if by == "fused" and name in known.not_fused:
        raise Contradiction(
            f"torch has no fused {name} for parameters that {strategy} shards; write foreach", "training.optimizer_implementation"
        )
    if name not in known.names or by not in TORCH:
        raise NotModelled(f"{name} ({by}) under {strategy} is not modelled yet; {known.instead}", "training.optimizer")


def _check_in_backward(training: Training, strategy: Strategy) -> None:
    where = "training.optimizer_in_backward"
    if training.gradient_accumulation_steps > 1:
        raise Contradiction(
            "a step within backward leaves no gradients to accumulate: write gradient_accumulation_steps: 1", where
        )
    if training.gradient_clipping:
        raise Contradiction("a step within backward knows no norm of all gradients: leave gradient_clipping out", where)
    if not training.zero_grad_to_none:
        raise Contradiction("a step within backward frees each gradient: leave zero_grad_to_none out", where)
    if training.precision == "16-mixed" or training.precision.startswith("megatron"):
        raise Contradiction(f"{training.precision} steps once all gradients are there: write bf16-mixed, or bf16-true", where)
    if not strategy.alone:
        raise NotModelled(f"a step within backward is not modelled under {strategy} yet; use strategy none", where)
