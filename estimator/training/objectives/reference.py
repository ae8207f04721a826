"""What a reference model says of the same tokens, without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.training.objectives.scores import Scorer, Scores


@dataclass(frozen=True, slots=True)
class Reference:
    """A model of its own, or the trained one without its adapter; or none, where all was computed before training."""

    scorer: Scorer | None
    without_adapter: bool = False

    @property
    def precomputed(self) -> bool:
        return self.scorer is None

    def __call__(self, ids: Tensor, labels: Tensor, prompt: int) -> Scores:
        assert self.scorer is not None
        with no_grad(ids.tape), adapted(ids.tape, not self.without_adapter):
            return self.scorer(ids, labels, prompt)


@contextmanager
def no_grad(tape: Tape) -> Iterator[None]:
    """Nothing that runs meanwhile is put in the graph."""
    before, tape.grad_enabled = tape.grad_enabled, False
    try:
        yield
    finally:
        tape.grad_enabled = before


@contextmanager
def adapted(tape: Tape, wanted: bool) -> Iterator[None]:
    """Adapters are part of what runs meanwhile, or not (peft's `disable_adapter`)."""
    before, tape.adapted = tape.adapted, wanted
    try:
        yield
    finally:
        tape.adapted = before
