"""Direct preference optimization: answers in pairs, chosen and rejected, scored by the model and by a reference.

After TRL 1.16's trainer/dpo_trainer.py, `DPOTrainer._compute_loss`, with its defaults: the loss `sigmoid`, no dropout. What it
logs is left out: a few numbers per token, when both models are done.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.families.heads import Batch
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.logprobs import log_sigmoid
from estimator.tape.pointwise import add_scalar, mul_scalar, neg, sub
from estimator.tape.reduction import mean
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import halves
from estimator.training.objectives.reference import Reference
from estimator.training.objectives.scores import Scorer, labels_of


@dataclass(frozen=True, slots=True)
class Dpo:
    """A batch of n pairs is one of 2 n sequences: the chosen ones, then the rejected ones."""

    policy: Scorer
    reference: Reference
    prompt: int

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, the attention's mask and that of the answers; and the reference's scores where they are computed before."""
        shape = 2 * batch.sequences, batch.tokens
        made = [empty(tape, shape, dtypes.int64, name) for name in ("input_ids", "attention_mask", "completion_mask")]
        if self.reference.precomputed:
            made += [empty(tape, (batch.sequences,), dtypes.float32, f"ref_{name}_logps") for name in ("chosen", "rejected")]
        return tuple(made)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss."""
        ids, _, _, *given = inputs
        with ids.tape.losing():
            labels = labels_of(ids)
        scores = self.policy(ids, labels, self.prompt)
        with ids.tape.losing():
            chosen, rejected = halves(scores.of_sequences())
            if not given:
                beside = self.reference(ids, labels, self.prompt)
                given = halves(beside.of_sequences())
            chosen_ratio = sub(chosen, given[0])
            rejected_ratio = sub(rejected, given[1])
            delta = sub(chosen_ratio, rejected_ratio)
            losses = neg(log_sigmoid(mul_scalar(delta)))
            return add_scalar(mul_scalar(mean(losses, 0))), ()
