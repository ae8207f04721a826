"""Group-relative policy optimization: answers that the model gave itself, weighed by how good they are.

After TRL 1.16's trainer/grpo_trainer.py, `_compute_loss`, with its defaults: the loss `dapo`, importance sampling against an
engine's log-probabilities. Answers come from elsewhere, or are written before (`training/generation.py`). They are scored without
gradients when they come, by passes that need less than those of training, and wait for all micro-steps of a step, in tensors of
which each takes a part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.families.heads import Batch
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, add_scalar, clamp, div, exp, mul, mul_scalar, neg, sub
from estimator.tape.selection import minimum
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, alias, empty, unary
from estimator.tape.views import narrow
from estimator.training.objectives.reference import Reference
from estimator.training.objectives.scores import Scorer, labels_of, total_of


@dataclass(slots=True)
class Grpo:
    """Sequences of a prompt and an answer. `micro_steps`: of a step; `reference`: what scores them, too; `engine`: whether they
    come from one whose probabilities of them differ."""

    policy: Scorer
    reference: Reference | None
    prompt: int
    micro_steps: int
    engine: bool = True
    waiting: list[Tensor] = field(default_factory=list)
    taken: int = 0

    def gather(self, tape: Tape, batch: Batch) -> None:
        """The answers of a step, in place of those of the step before."""
        rows, answer = self.micro_steps * batch.sequences, batch.tokens - self.prompt
        forms: list[tuple[str, tuple[int, ...], DType]] = [
            ("prompt_ids", (rows, self.prompt), dtypes.int64),
            ("prompt_mask", (rows, self.prompt), dtypes.int64),
            ("completion_ids", (rows, answer), dtypes.int64),
            ("completion_mask", (rows, answer), dtypes.int64),
            ("advantages", (rows,), dtypes.float32),
            ("num_items_in_batch", (), dtypes.int64),
        ]
        if self.engine:
            forms += [
                ("old_per_token_logps", (rows, answer), dtypes.float32),
                ("importance_sampling_ratio", (rows, 1), dtypes.float32),
                ("sampling_per_token_logps", (rows, answer), dtypes.float32),
            ]
        if self.reference is not None:
            forms.append(("ref_per_token_logps", (rows, answer), dtypes.float32))
        self.waiting = [empty(tape, shape, dtype, name) for name, shape, dtype in forms]

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """A micro-step's part of them."""
        if not self.taken:
            self.gather(tape, batch)
        self.taken += 1
        return tuple([narrow(t, 0, batch.sequences) if t.shape else t for t in self.waiting])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss."""
        prompt_ids, _, completion_ids, mask, advantages, count, *given = inputs
        sampled, given = (given[:3], given[3:]) if self.engine else ([], given)
        with prompt_ids.tape.losing():
            shape = prompt_ids.shape[0], prompt_ids.shape[1] + completion_ids.shape[1]
            ids, _attended = (empty(ids.tape, shape, dtypes.int64, "cat") for ids in (prompt_ids, prompt_ids))
        found = self._scored(ids, completion_ids.shape[1])
        with ids.tape.losing():
            weights = exp(sub(found[0], sampled[0] if sampled else found[0].detach()))
            kl = _divergence(given[0], found[0]) if given else None
            clamped = clamp(weights)
            each = advantages.shape[0], 1
            first = mul(weights, alias(advantages, each))
            second = mul(clamped, alias(advantages, each))
            losses = neg(minimum(first, second))
            if sampled:
                losses = mul(losses, sampled[1])
            if kl is not None:
                losses = add(losses, mul_scalar(kl))
            per_step = unary("div", mul_scalar(unary("div", unary("clamp", count), dtypes.float32)))
            return div(total_of(mul(losses, mask)), per_step), ()

    def _scored(self, ids: Tensor, tokens: int) -> list[Tensor]:
        with ids.tape.losing():
            labels = labels_of(ids)
        scores = self.policy(ids, labels, self.prompt)
        with ids.tape.losing():
            return scores.of_answers(tokens)


def _divergence(reference: Tensor, found: Tensor) -> Tensor:
    """exp(r - p) - (r - p) - 1."""
    grown = exp(sub(reference, found))
    return add_scalar(sub(grown, sub(reference, found)))
