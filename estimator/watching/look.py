"""A look at the code of a training while it runs: what the model is given, and where code and job differ."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from estimator.contract.answer import Answer
from estimator.contract.errors import WillItFitError
from estimator.contract.units import gib
from estimator.pipeline.estimation import estimate
from estimator.watching.code import seen
from estimator.watching.differences import Difference, change, differences

LOGGER = logging.getLogger("willitfit")


class Look:
    """Hooks on a model, and what they saw: the `longest` batch (sequences, tokens), and `differences` between code and job.

    `settings`: what a trainer says of the run beside model and optimizer, by field of the job.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.model: Any = None
        self.optimizer: Any = None
        self.settings: dict[str, Any] = {}
        self.longest: tuple[int, int] | None = None
        self.differences: list[Difference] = []
        self._handles: list[Any] = []

    def begin(self, model: Any, optimizer: Any) -> None:
        """Look at a model from now on: at each call, and once within autocast, in its first module."""
        self.model, self.optimizer = model, optimizer
        first = next((part for part in model.modules() if not any(True for _ in part.children())), model)
        self._handles = [
            model.register_forward_pre_hook(self._called, with_kwargs=True),
            first.register_forward_pre_hook(self._within),
        ]

    def end(self, steps: int) -> None:
        """Look no longer; if the training made steps, say where batches were not the job's after all."""
        for handle in self._handles:
            handle.remove()
        if steps:
            self._say_lengths()

    def _called(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The model is called: the largest batch, of sequences and tokens."""
        if not module.training or compiling():
            return
        first = named.get("input_ids", given[0] if given else None)
        shape = tuple(getattr(first, "shape", ()))
        if len(shape) == 2 and (self.longest is None or shape[0] * shape[1] > self.longest[0] * self.longest[1]):
            self.longest = int(shape[0]), int(shape[1])

    def _within(self, module: Any, given: tuple[Any, ...]) -> None:
        """Its first module is called, within autocast if there is any: code and job are compared, once."""
        if not self.model.training or compiling():
            return
        self._handles.pop().remove()
        try:
            self._compare()
        except Exception as error:  # a look must not end a training
            warn("the code could not be compared with the job: %s: %s", type(error).__name__, error)

    def _compare(self) -> None:
        where = next((p.device.type for p in self.model.parameters()), "cpu")
        torch: Any = import_module("torch")
        autocast = str(torch.get_autocast_dtype(where)).removeprefix("torch.") if torch.is_autocast_enabled(where) else ""
        code = seen(self.model, self.optimizer, autocast) | self.settings
        training = self.answer.job["training"]
        if self.longest is not None:
            code["training.micro_batch_size"] = self.longest[0]
            if self.longest[1] > training["sequence_length"]:  # shorter ones may be padded to their longest
                code["training.sequence_length"] = self.longest[1]
        self.differences = differences(self.answer, code)
        if self.differences:
            said = "; ".join(map(str, self.differences))
            warn("the job in the code is not the job that was predicted: %s%s", said, self._as_in_code())

    def _as_in_code(self) -> str:
        """What would be predicted with the code's settings, as far as a job can have them."""
        changed = change(self.differences)
        job = {**self.answer.job, "training": {**self.answer.job["training"], **changed}}
        try:
            peak = estimate(job).memory.peak_bytes
        except WillItFitError:
            return ""
        fields = ", ".join(changed)
        before = gib(self.answer.memory.peak_bytes)
        return f". With the code's {fields}: {gib(peak)} allocated at the peak, in place of {before}" if changed else ""

    def _say_lengths(self) -> None:
        """Batches that came later may be longer than the first, and than the job's."""
        known = {one.field for one in self.differences}
        training = self.answer.job["training"]
        if self.longest is None or "training.sequence_length" in known:
            return
        if self.longest[1] != training["sequence_length"]:
            one = Difference(field="training.sequence_length", job=training["sequence_length"], code=self.longest[1])
            self.differences.append(one)
            warn("the largest batch was not the job's: %s", one)


def rank() -> int:
    """Of this process among those of the training."""
    distributed: Any = import_module("torch").distributed
    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else 0


def compiling() -> bool:
    """Whether torch.compile follows what runs: it must not follow a look."""
    return bool(import_module("torch").compiler.is_compiling())


def warn(text: str, *values: object) -> None:
    """Of several processes the first speaks; any of them says that its memory ran out."""
    if rank() == 0 or text.startswith("out of memory"):
        LOGGER.warning(text, *values)
