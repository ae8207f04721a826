"""What torch allocates and frees in a step, storage by storage, as a tape has it."""

from __future__ import annotations

import time
from typing import Any

import torch

from estimator.contract.errors import NotModelled
from estimator.simulation.record import Kind, Record
from estimator.tape.gpu import Gpu
from estimator.tape.tape import ACTIVATION, GRADIENT, LOSS, OPTIMIZER_STATE, PARAMETER, TEMPORARY
from estimator.verify.live import Live


class Recorder(Live):
    """Counts as `Live` does, and remembers each storage: how large it is, what made it, and what it is for.

    What is alive when the last step starts was there before it. `vocabulary`: the width by which logits are told. Raises
    `NotModelled` where the process has computed for `limit_s` seconds since `started` (`time.process_time`).
    """

    def __init__(self, gpu: Gpu, vocabulary: int, started: float, limit_s: float):
        super().__init__(gpu)
        self.vocabulary = vocabulary
        self.deadline, self.limit_s = started + limit_s, limit_s
        self.kinds: list[Kind] = [Kind(0, "", TEMPORARY)]
        self.events: list[int] = []
        self.numbers: dict[int, int] = {}
        """The number of each storage that is alive, by its address."""
        self.phases: list[tuple[int, str]] = []
        self.before: list[int] = []
        """What was alive when the step started."""
        self.fresh = PARAMETER
        self.form: tuple[tuple[int, ...] | None, str | None] = (None, None)
        self.start = self.first = 0
        self.predicting = False
        """Whether the model has come to its logits."""
        self.model: Any = None
        self.reached = False
        """Whether backward has come to a parameter."""

    def track(self, tensor: torch.Tensor) -> None:
        self.form = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        if tensor.is_floating_point() and tensor.dim() and tensor.shape[-1] == self.vocabulary and self.fresh == TEMPORARY:
            self.predicting = True
        super().track(tensor)
        self.form = (None, None)

    def _set(self, key: int, nbytes: int) -> None:
        before = self.sizes[key]
        super()._set(key, nbytes)
        if before != nbytes and before:
            self.events.append(-self.numbers.pop(key))
        if before != nbytes and nbytes:
            self.numbers[key] = len(self.kinds)
            self.events.append(len(self.kinds))
            made = LOSS if self.predicting and not self.in_backward else self.fresh
            self.kinds.append(Kind(nbytes, self.operation, made, *self.form))
            if time.process_time() > self.deadline:
                raise NotModelled(
                    f"torch's count takes more than {self.limit_s:.0f} seconds of processor time: write fewer tokens, or a model "
                    "of a family that is modelled",
                    "model",
                )

    def started(self, model: Any) -> None:
        self.model, self.fresh, self.predicting = model, TEMPORARY, False
        self.phases, self.before = [], sorted(self.numbers.values())
        self.start = self.first = len(self.events)

    def lapped(self, phase: str) -> None:
        self.phases.append((self.start, phase))
        if phase == "forward":
            for number in self._born():
                if self.kinds[number].component == TEMPORARY:
                    self._count_as(number, ACTIVATION)
        elif phase == "backward":
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    self.reached = True
                    self._count(parameter.grad, GRADIENT)
        self.start, self.predicting = len(self.events), False

    def settled(self, optimizer: Any) -> None:
        for state in optimizer.states():
            for tensor in filter(torch.is_tensor, state.values()):
                self._count(tensor, OPTIMIZER_STATE)

    def _born(self) -> list[int]:
        """What was born in this phase and is alive."""
        alive = set(self.numbers.values())
        return [event for event in self.events[self.start :] if event in alive]

    def _count(self, tensor: torch.Tensor, component: str) -> None:
        number = self.numbers.get(tensor.untyped_storage()._cdata)
        if number is not None:
            self._count_as(number, component)

    def _count_as(self, number: int, component: str) -> None:
        self.kinds[number] = self.kinds[number]._replace(component=component)

    def record(self) -> Record:
        """The last step: what was there before it, and its phases."""
        stop = self.start
        named = {number: i for i, number in enumerate(self.before, 1)}
        events = list(named.values())
        kinds = [self.kinds[0], *(self.kinds[number] for number in self.before)]
        for event in self.events[self.first : stop]:
            if event > 0:
                named[event] = len(kinds)
                kinds.append(self.kinds[event])
            events.append(named[abs(event)] if event > 0 else -named[-event])
        shift = len(self.before) - self.first
        return Record(kinds, events, [(0, "load"), *((start + shift, name) for start, name in self.phases)])
