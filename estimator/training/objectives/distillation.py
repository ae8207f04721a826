"""Distillation: a student learns from how likely a teacher holds each word of what the student wrote.

After TRL 1.16's trainer/distillation_trainer.py, `DistillationTrainer._compute_loss`: reverse KL, its default.
The loss runs in place of the student's forward pass, and so outside of the autocast that accelerate has put around that. What it
logs is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.families.heads import Batch, CausalLM
from estimator.tape import dtypes
from estimator.tape.divergence import divergences
from estimator.tape.dtypes import DType
from estimator.tape.logprobs import Head
from estimator.tape.pointwise import div
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import index, narrow, reshape
from estimator.training.objectives.reference import no_grad
from estimator.training.objectives.scores import last, total_of


@dataclass(slots=True)
class Distillation:
    """Sequences of a prompt and an answer. `micro_steps`: of a step, for which answers wait."""

    student: CausalLM
    teacher: CausalLM
    prompt: int
    micro_steps: int
    waiting: list[Tensor] = field(default_factory=list)
    taken: int = 0

    def gather(self, tape: Tape, batch: Batch) -> None:
        """The answers of a step, in place of those of the step before."""
        rows, answer = self.micro_steps * batch.sequences, batch.tokens - self.prompt
        shapes = {"prompt": (rows, self.prompt), "completion": (rows, answer)}
        made = [empty(tape, shape, dtypes.int64, f"{kind}_{name}") for kind, shape in shapes.items() for name in ("ids", "mask")]
        self.waiting = [*made, empty(tape, (), dtypes.int64, "num_items_in_batch")]

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """A micro-step's part of them."""
        if not self.taken:
            self.gather(tape, batch)
        self.taken += 1
        return tuple([narrow(t, 0, batch.sequences) if t.shape else t for t in self.waiting])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss."""
        prompt_ids, _, completion_ids, mask, count = inputs
        tape, answer = prompt_ids.tape, completion_ids.shape[1]
        with tape.losing():
            count = unary("div", unary("clamp", count), dtypes.float32)
            shape = prompt_ids.shape[0], prompt_ids.shape[1] + answer
            ids, _attended = (empty(tape, shape, dtypes.int64, "cat") for _ in range(2))
        student = self._states(self.student, ids, answer)
        with no_grad(tape):
            teacher = self._states(self.teacher, ids, answer)
        with tape.losing():
            loss = _loss(student, self._head(self.student), teacher, self._head(self.teacher), mask)
            return div(loss, count), ()

    def _states(self, model: CausalLM, ids: Tensor, answer: int) -> Tensor:
        """Last hidden states of the tokens before those of the answer: a view."""
        return last(narrow(model.body.forward(ids), 1, ids.shape[1] - 1), answer)

    def _head(self, model: CausalLM) -> Head:
        return Head(model.lm_head.weight, model.lm_head.bias, model.lm_head.weight.dtype)


def _loss(student: Tensor, head: Head, teacher: Tensor, other: Head, mask: Tensor) -> Tensor:
    """The sum over all tokens of the answers (`_chunked_divergence_loss`)."""
    valid = unary("ne", reshape(mask, (mask.numel,)), dtypes.bool_)
    count = empty(valid.tape, (), dtypes.int64, "sum")
    flat = [reshape(states, (mask.numel, states.shape[-1])) for states in (student, teacher)]
    flat = [index(states, (valid,), states.shape) for states in flat]
    total = total_of(divergences(flat[0], head, flat[1], other))
    del count
    return total
