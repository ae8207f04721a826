"""A training step of one pipeline stage: micro-batches that wait, and one whose backward pass follows its forward pass.

After core/pipeline_parallel/schedules.py. What waits is alike, so it is one slot of the tape; of the steady state two rounds
are played, since a round begins with what the one before it left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimator.families.build import Builder
from estimator.megatron.model import Stage
from estimator.tape import autograd
from estimator.tape.collectives import Group, receive
from estimator.tape.tape import Slot
from estimator.tape.tensor import Tensor
from estimator.training.optimizers import Optimizer
from estimator.training.scaling import Scaler

Run = Callable[..., tuple[Tensor, None]]


@dataclass(slots=True)
class Waiting:
    """A micro-batch whose backward pass is to come: what was received, the batch, and the output with its graph."""

    received: Tensor | None
    given: list[Tensor]
    output: Tensor


class Rounds:
    """The stage in its schedule. The gradients that a backward pass got and sent live until the next one's are there."""

    def __init__(self, stage: Stage, run: Run, pipeline: Group, scaler: Scaler):
        self.stage, self.run, self.pipeline, self.scaler = stage, run, pipeline, scaler
        self.got: Tensor | None = None
        self.made: Tensor | None = None

    def forward(self) -> Waiting:
        """One micro-batch forward."""
        stage = self.stage
        stage.tape.grad_enabled = True
        received = None
        if not stage.place.first:
            received = receive(stage.hidden("recv_forward"), self.pipeline)
            received.requires_grad = True
        given = list(stage.inputs())
        return Waiting(received, given, self.run(received, *given)[0])

    def backward(self, waiting: Waiting) -> None:
        """Its backward pass, from the loss or from the gradient that the next stage sends; then its output is let go of."""
        if self.stage.place.last:
            autograd.backward(self.scaler.scale(waiting.output))
        else:
            self.got = receive(self.stage.hidden("recv_backward"), self.pipeline)
            waiting.output.storage.release()
            autograd.run_backward((waiting.output,), (self.got,))
        if waiting.received is not None:
            self.made = waiting.received.grad

    def forget(self) -> None:
        """The gradients of the last backward pass go."""
        self.got = self.made = None


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Micro-batches of 1F1B whose forward pass has run when a stage's first backward pass begins."""
    return min(stages - stage, micro_batches)


def train(
    build: Builder, stage: Stage, optimizer: Optimizer, pipeline: Group, held: int, micro_batches: int, scaler: Scaler
) -> None:
    """Play a steady-state step of 1F1B, with so many micro-batches `held` at once."""
    tape = build.tape
    run = build.root(stage.forward)
    trained = [p for p in build.parameters if p.trainable]
    build.sharding.prepare(trained)
    states = optimizer.states(tape, trained)
    rounds = Rounds(stage, run, pipeline, scaler)
    others = Slot("micro-batches", held - 1)
    waiting: Waiting | None = None
    tape.begin("forward")
    if held > 1:
        with tape.within(others):
            waiting = rounds.forward()
            waiting.output.storage.release()  # sent to the next stage
    for i in range(min(2, micro_batches - held + 1)):
        if i:
            tape.begin("forward")
        one = rounds.forward()
        tape.begin("backward")
        rounds.backward(one)
        del one
    rounds.forget()
    if waiting is not None:
        with tape.within(others):
            rounds.backward(waiting)
            waiting = None
            rounds.forget()
    tape.begin("optimizer_step")
    build.sharding.step(lambda: scaler.step(lambda: optimizer.step(tape, trained)))
    scaler.update()
    tape.finish()
    del states
