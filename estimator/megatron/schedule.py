"""The passes of one rank of a pipeline, which runs its chunks of the model in the order of its schedule.

After core/pipeline_parallel/schedules.py: what was received, what a backward pass got and what it sends back live as long as
names refer to them there. The schedules that Megatron-Core does not have are run as its 1F1B is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from estimator.megatron.linear import Later
from estimator.megatron.model import Stage
from estimator.parallel.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Pipeline
from estimator.tape import autograd
from estimator.tape.collectives import Group, receive
from estimator.tape.tape import ACTIVATION
from estimator.tape.tensor import Tensor
from estimator.training.scaling import Scaler

Run = Callable[..., tuple[Tensor, None]]


@dataclass(slots=True)
class Waiting:
    """A micro-batch whose backward pass is to come: what was received, the batch, and the output with its graph."""

    received: Tensor | None
    given: list[Tensor]
    output: Tensor


class Rounds:
    """A rank's chunks in their schedule. The gradients that a backward pass got and sent live until the next one's are there.

    An interleaved schedule receives the input of the next forward pass, and the gradient for the next backward pass, as soon as
    one of the same kind has run (`overlap_p2p_comm`).
    """

    def __init__(
        self, stages: Sequence[Stage], run: Run, pipeline: Pipeline, actions: list[Action], scaler: Scaler, later: Later
    ):
        self.stages, self.run, self.scaler, self.later = stages, run, scaler, later
        self.pipeline, self.actions = pipeline, actions
        self.ahead = pipeline.schedule == "interleaved"
        self.group = Group("pipeline", pipeline.ranks)
        self.tape = stages[0].tape
        self.waiting: list[list[Waiting]] = [[] for _ in stages]
        self.put_off: list[list[Later]] = [[] for _ in stages]
        self.forget()

    def queue(self, kind: str, chunk: int) -> list[Any]:
        """Micro-batches of a chunk that wait for their backward pass (F), or for their weights' gradients (I)."""
        return self.waiting[chunk] if kind == FORWARD else self.put_off[chunk]

    def forget(self) -> None:
        """What the last passes got and sent goes."""
        self.got: Tensor | None = None
        self.made: Tensor | None = None
        self.sent: Tensor | None = None
        self.next_input: Tensor | None = None
        self.next_gradient: Tensor | None = None

    def play(self, number: int, counted: bool) -> None:
        """An action of the list, in a phase of its own."""
        action = self.actions[number]
        self.begin(action, counted)
        self.do(action)
        if self.ahead:
            self._receive_ahead(action.kind, self.following(number))

    def following(self, number: int) -> Stage | None:
        """The stage of the next pass in the same direction."""
        later = (self.actions[i] for i in range(number + 1, len(self.actions)))
        return next((self.stages[one.chunk] for one in later if one.kind == self.actions[number].kind), None)

    def begin(self, action: Action, counted: bool, aside: bool = False) -> None:
        """A phase for an action. A micro-batch is counted at its first chunk; of DualPipe it has but one here."""
        whole = action.kind != WEIGHT and (action.chunk == 0 or self.pipeline.schedule == "dualpipe")
        self.tape.begin("forward" if action.kind == FORWARD else "backward", int(whole) if counted else None, aside)

    def do(self, action: Action) -> None:
        """One pass."""
        if action.kind == FORWARD:
            self._forward(self.stages[action.chunk], self.waiting[action.chunk])
        elif action.kind == WEIGHT:
            self.put_off[action.chunk].pop(0).run(self.tape)
        else:
            self.later.on = action.kind == INPUT
            self._backward(self.stages[action.chunk], self.waiting[action.chunk])
            if self.later.on:
                self.put_off[action.chunk].append(self.later.taken())
            self.later.on = False

    def _forward(self, stage: Stage, queue: list[Waiting]) -> None:
        self.release_sent()
        self.tape.grad_enabled = True
        received, self.next_input = self.next_input, None
        if not stage.first:
            received = self._received(stage, "recv_forward", stage.number - 1) if received is None else received
            received.requires_grad = True
        given = list(stage.inputs())
        queue.append(Waiting(received, given, self.run(stage, received, *given)[0]))
        self.sent = None if stage.last else queue[-1].output

    def _backward(self, stage: Stage, queue: list[Waiting]) -> None:
        """From the loss, or from the gradient that the next stage sends; the output is let go of before."""
        if stage.last:
            one = queue.pop(0)
            self.got = None
            self.release_sent()
            autograd.backward(self.scaler.scale(one.output))
        else:
            following, self.next_gradient = self.next_gradient, None
            self.got = self._received(stage, "recv_backward", stage.number + 1) if following is None else following
            del following
            if not self.ahead:
                self.release_sent()
            one = queue.pop(0)
            one.output.storage.release()
            autograd.run_backward((one.output,), (self.got,))
        self.made = None if one.received is None else one.received.grad

    def _receive_ahead(self, kind: str, stage: Stage | None) -> None:
        """What the next pass in the same direction begins with; a gradient takes the place of the last one."""
        if kind == FORWARD and stage is not None and not stage.first:
            with self.tape.counting(ACTIVATION):  # which its first layer will save
                self.next_input = self._received(stage, "recv_forward", stage.number - 1)
        if kind == BACKWARD and stage is not None and not stage.last:
            self.next_gradient = self._received(stage, "recv_backward", stage.number + 1)
        if kind == BACKWARD:
            self.got = None

    def release_sent(self) -> None:
        """The last output was sent (`deallocate_output_tensor`)."""
        if self.sent is not None:
            self.sent.storage.release()
            self.sent = None

    def _received(self, stage: Stage, operation: str, neighbour: int) -> Tensor:
        """What a neighbour sends, or the rank's other chunk where a V turns."""
        hidden = stage.hidden(operation)
        if self.pipeline.turns and any(other.number == neighbour for other in self.stages):
            return hidden
        return receive(hidden, self.group)
