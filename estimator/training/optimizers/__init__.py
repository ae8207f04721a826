"""Optimizers: the states they keep per parameter, and the temporaries of one step, as each library implements them."""

from estimator.training.optimizers.base import Optimizer
from estimator.training.optimizers.catalogue import optimizer
from estimator.training.optimizers.in_backward import step_in_backward

__all__ = ["Optimizer", "optimizer", "step_in_backward"]
