"""One steady-state training step on a tape: forward and loss, backward, optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from estimator import dtypes
from estimator.dtypes import DType
from estimator.families.build import Builder
from estimator.tape import autograd
from estimator.tape.autocast import autocast
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import to
from estimator.tape.tape import ACTIVATION, LOSS, TEMPORARY
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import reshape
from estimator.training.optimizers import Optimizer


class Model(Protocol):
    """What a family's model offers."""

    def forward(self, ids: Tensor) -> Tensor:
        """Last hidden states, [batch, tokens, hidden], of token ids [batch, tokens]."""

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step processes on one GPU: `micro_steps` batches of `batch` sequences of `tokens` tokens."""

    batch: int
    tokens: int
    micro_steps: int = 1
    autocast: DType | None = None


def train(build: Builder, model: Model, optimizer: Optimizer, step: Step) -> None:
    """Play a step on the tape on which `model` was built: the second, so that the optimizer has its states.

    The first micro-step creates the gradients; all later ones add to them and are alike, so two stand for any number.
    """
    tape = build.tape

    def forward(ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = model.forward(ids)
        tape.fresh = tape.kept = LOSS
        logits = model.lm_head(hidden)
        loss = causal_lm_loss(logits, ids)
        tape.fresh, tape.kept = TEMPORARY, ACTIVATION
        return loss, logits

    trained = [p for p in build.parameters if p.trainable]
    states = optimizer.states(tape, trained)
    run = build.root(forward)
    repeats = min(step.micro_steps, 2)
    for i in range(repeats):
        build.sharding.micro_step(last=i + 1 == repeats)
        tape.grad_enabled = True
        tape.begin("forward")
        ids = empty(tape, (step.batch, step.tokens), dtypes.int64, "input_ids")
        with autocast(tape, step.autocast):
            loss, logits = run(ids)
        tape.begin("backward")
        del logits
        autograd.backward(loss)
        del loss, ids
    tape.begin("optimizer_step")
    build.sharding.step(lambda: optimizer.step(tape, trained))
    tape.finish()
    del states


def causal_lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """transformers' loss: logits to float32, labels shifted by one (padded, then cut), mean over the tokens."""
    tape = logits.tape
    batch, tokens, vocabulary = logits.shape
    wide = to(logits, dtypes.float32)
    padded = empty(tape, (batch, tokens + 1), dtypes.int64, "constant_pad_nd")
    shifted = alias(padded, (batch, tokens)) if batch == 1 else empty(tape, (batch, tokens), dtypes.int64, "clone")
    return cross_entropy(reshape(wide, (-1, vocabulary)), reshape(shifted, (-1,)))
