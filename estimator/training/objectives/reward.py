"""A reward model: a score of each answer, trained on pairs of which one answer is better.

After TRL 1.16's trainer/reward_trainer.py, `RewardTrainer.compute_loss`, with its defaults. What it logs is left out: a few
numbers per pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.families.heads import Batch, SequenceClassification
from estimator.tape import dtypes
from estimator.tape.autocast import autocast
from estimator.tape.dtypes import DType
from estimator.tape.logprobs import log_sigmoid
from estimator.tape.pointwise import neg, sub, to
from estimator.tape.reduction import mean
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import halves, reshape


@dataclass(frozen=True, slots=True)
class Reward:
    """A batch of n pairs is one of 2 n sequences: the chosen ones, then the rejected ones."""

    model: SequenceClassification
    autocast: DType | None

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids and the attention's mask."""
        shape = 2 * batch.sequences, batch.tokens
        return tuple([empty(tape, shape, dtypes.int64, name) for name in ("input_ids", "attention_mask")])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss."""
        scores = self._scores(inputs[0])
        with scores.tape.losing():
            chosen, rejected = halves(reshape(scores, (scores.shape[0],)))
            return neg(mean(log_sigmoid(sub(chosen, rejected)), 0)), ()

    def _scores(self, ids: Tensor) -> Tensor:
        """One number for each sequence; in float32 under autocast, as accelerate widens what a model returns."""
        with autocast(ids.tape, self.autocast):
            scores, *_held = self.model.pooled(ids)
        del _held
        with ids.tape.losing():
            return to(scores, dtypes.float32) if self.autocast else scores
