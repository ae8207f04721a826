"""One steady-state training step on a tape: forward and loss, backward, optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimator.dtypes import DType
from estimator.families.build import Builder
from estimator.families.heads import Batch, Model
from estimator.families.held import widened
from estimator.tape import autograd
from estimator.tape.autocast import autocast
from estimator.training.gradients import clip, kept
from estimator.training.optimizers import Optimizer


@dataclass(frozen=True, slots=True)
class Step:
    """What one step processes on one GPU: `micro_steps` times a batch."""

    batch: Batch
    micro_steps: int = 1
    autocast: DType | None = None
    clipped: bool = False
    keeps_gradients: bool = False
    widens: bool = False
    """Whether what the model returns is converted to float32."""
    between: Callable[[], None] | None = None
    """What runs between steps, as evaluation does."""


def train(build: Builder, model: Model, optimizer: Optimizer, step: Step) -> None:
    """Play a step on the tape on which `model` was built: the second, so that the optimizer has its states.

    The first micro-step creates the gradients; all later ones add to them and are alike, so two stand for any number.
    """
    tape = build.tape

    trained = [p for p in build.parameters if p.trainable]
    states = optimizer.states(tape, trained)
    run = build.root(model.forward)
    if step.keeps_gradients:
        kept(tape, trained)
    if step.between is not None:
        step.between()
    repeats = min(step.micro_steps, 2)
    for i in range(repeats):
        build.sharding.micro_step(last=i + 1 == repeats)
        tape.grad_enabled = True
        tape.begin("forward")
        inputs = model.inputs(tape, step.batch, build.dtype)
        with autocast(tape, step.autocast):
            loss, held = run(*inputs)
        if step.widens:
            with tape.losing():
                held = widened(held)
        tape.begin("backward")
        del held
        autograd.backward(loss)
        del loss, inputs
    tape.begin("optimizer_step")
    if step.clipped:
        clip(tape, trained)
    build.sharding.step(lambda: optimizer.step(tape, trained))
    tape.finish()
    del states
