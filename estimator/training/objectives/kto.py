"""Kahneman-Tversky optimization: answers that are each good or bad, scored by the model and by a reference.

After TRL 1.16's trainer/kto_trainer.py, `KTOTrainer._compute_loss` and `_compute_kl_logps`, with its defaults: the loss `kto`,
both kinds weighed alike, no dropout. Each batch comes with one of as many mismatched answers, on which the divergence is
estimated. What it logs is left out: a few numbers per token, when both models are done.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.families.heads import Batch
from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import clamp, div_, mul, mul_scalar, neg, sigmoid, sub
from estimator.tape.reduction import mean
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, alias, empty, unary
from estimator.tape.views import cat, index
from estimator.training.objectives.reference import Reference, no_grad
from estimator.training.objectives.scores import Scorer, labels_of, summed


@dataclass(frozen=True, slots=True)
class Kto:
    """A batch of n answers, half of them good, and of n mismatched ones."""

    policy: Scorer
    reference: Reference
    prompt: int

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, the attention's mask and that of the answers, twice; which are good; and the reference's scores where they
        are computed before."""
        shape, each = (batch.sequences, batch.tokens), (batch.sequences,)
        names = ("input_ids", "attention_mask", "completion_mask")
        made = [empty(tape, shape, dtypes.int64, kind + name) for kind in ("", "KL_") for name in names]
        made.append(empty(tape, each, dtypes.bool_, "label"))
        if self.reference.precomputed:
            made += [empty(tape, each, dtypes.float32, name) for name in ("ref_logps", "ref_KL_logps")]
        return tuple(made)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss."""
        ids, _, _, mismatched, _, _, good, *given = inputs
        with ids.tape.losing():
            counts = [empty(ids.tape, (), dtypes.int64, name) for name in ("sum", "rsub")]
        with no_grad(ids.tape):
            of_mismatched = self._of_mismatched(self.policy, mismatched)
        with ids.tape.losing():
            labels = labels_of(ids)
        scores = self.policy(ids, labels, self.prompt)
        with ids.tape.losing():
            sums = scores.of_sequences()
            kinds = _kinds(good)
            own = [index(sums, (places,), places.shape) for places in kinds]
        if not given:
            reference_kl = self._of_mismatched(self.reference, mismatched)
            beside = self.reference(ids, labels, self.prompt)
            with ids.tape.losing():
                given = [beside.of_sequences(), reference_kl]
        with ids.tape.losing():
            theirs = [index(given[0], (places,), places.shape) for places in kinds]
            divergence = clamp(mean(sub(of_mismatched, given[1]), 0))
            ratios = [sub(a, b) for a, b in zip(own, theirs, strict=True)]
            rewards = [mul_scalar(ratio.detach()) for ratio in ratios]
            pairs = (ratios[0], divergence), (divergence, ratios[1])
            losses = [neg(sigmoid(mul_scalar(sub(*pair)))) for pair in pairs]
            loss = _mean(cat([mul_scalar(each) for each in losses], 0))
            del counts, rewards
            return loss, ()

    def _of_mismatched(self, scorer: Scorer | Reference, ids: Tensor) -> Tensor:
        """Log-probabilities of mismatched answers, [sequences]."""
        with ids.tape.losing():
            labels = labels_of(ids)
        found = scorer(ids, labels, self.prompt).log_probs
        with ids.tape.losing():
            return summed(found)


def _kinds(good: Tensor) -> list[Tensor]:
    """The places of good answers, and of bad ones."""
    tape, (count,) = good.tape, good.shape
    return [empty(tape, (each,), dtypes.int64, "nonzero") for each in (-(-count // 2), count // 2)]


def _mean(x: Tensor) -> Tensor:
    """`x.nanmean()`: the sum of what is a number, in place over how many these are (ReduceOps.cpp). Saves both."""
    shape = x.shape

    def backward(g: Tensor, x: Tensor) -> Tensor:
        missing = unary("isnan", x, dtypes.bool_)
        return mul(alias(g, shape, (0,) * len(shape)), unary("logical_not", missing))

    total = attach(record("NansumBackward", (x,), (x,), backward), empty(x.tape, (), x.dtype, "nansum"))
    return div_(total, empty(x.tape, (), dtypes.int64, "sum"))
