"""A training watched: the prediction before its first step, what was measured after, and where code and job differ."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from estimator.contract.answer import Answer
from estimator.contract.errors import InvalidValue, WillItFitError
from estimator.contract.job import Job
from estimator.contract.units import gib
from estimator.exchange.documents import job_of
from estimator.measured.explain import explain
from estimator.pipeline.estimation import estimate
from estimator.specs.module import check_module
from estimator.watching.code import seen, transformer, unwrapped
from estimator.watching.differences import Difference, change, differences
from estimator.watching.reader import QUANTITIES, Cuda, Reader
from estimator.watching.run_record import RunRecord, append, now, versions

LOGGER = logging.getLogger("willitfit")
SETTLED = 2
"""Steps of the optimizer after which all that a step holds has been there: it makes its states in the first."""
Log = Callable[[dict[str, float]], object]


def watch(
    job: Job | Mapping[str, Any] | str | Path,
    model: Any = None,
    optimizer: Any = None,
    *,
    on: str | None = None,
    log: Log | None = None,
    record: str | Path | None = None,
    name: str = "",
    reader: Reader | None = None,
) -> Watch:
    """Watch a training: a context manager around one's own loop, or `.attach(trainer)` for a Trainer's.

    `job`: as `estimate` takes it, or the path of a framework's file; `on`: hardware in place of its own. `model` and `optimizer`:
    of a loop of one's own, torch's or as Accelerate and DistributedDataParallel wrap them. `log`: what takes names and numbers,
    such as `accelerator.log`, `wandb.log` or `mlflow.log_metrics`; without it they go to standard error, or to the trainer's own
    log. `record`: a file at whose end the run is written down, as one line of JSON; `name`: what it is called there. `reader`:
    what measures in place of torch's counters of the current GPU. Raises what `estimate` raises.
    """
    return Watch(estimate(job_of(job, on)), model, optimizer, log, None if record is None else Path(record), name, reader)


class Watch:
    """A training that is watched: `predicted` and `measured` bytes, and `differences` between code and job."""

    def __init__(
        self,
        answer: Answer,
        model: Any = None,
        optimizer: Any = None,
        log: Log | None = None,
        record: Path | None = None,
        name: str = "",
        reader: Reader | None = None,
    ) -> None:
        if answer.job["task"] != "train":
            raise InvalidValue(f"is {answer.job['task']}: a training is watched; write train", "task")
        if record is not None and not record.absolute().parent.is_dir():
            raise InvalidValue(f"{record.absolute().parent} is no folder: make it before the training begins", "record")
        self.answer, self.model, self.optimizer, self.record, self.name = answer, model, optimizer, record, name
        self.log: Log = log or _to_stderr
        self.reader = reader or Cuda()
        memory = answer.memory
        known = {"allocated": memory.peak_bytes, "reserved": memory.reserved_bytes, "total": memory.total_bytes}
        self.predicted: dict[str, int] = {quantity: size for quantity, size in known.items() if size is not None}
        self.measured: dict[str, int] = {}
        self.differences: list[Difference] = []
        self.settings: dict[str, Any] = {}
        """What a trainer says of the run beside model and optimizer, by field of the job."""
        self.longest: tuple[int, int] | None = None
        self.steps = 0
        self._handles: list[Any] = []
        self._state = "new"

    def attach(self, trainer: Any) -> Self:
        """Watch what a trainer trains: transformers' Trainer and those of TRL, or Lightning's. `InvalidValue` for others."""
        from estimator.watching.trainers import attach

        attach(self, trainer)
        return self

    def __enter__(self) -> Self:
        if self.model is not None:
            self.begin(self.model, self.optimizer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state == "begun":
            self.end(error)

    def begin(self, model: Any, optimizer: Any, count: bool = True) -> None:
        """Before the first step: log the prediction, be ready to look at the code, and let peaks begin.

        `count`: the optimizer's steps, as its hooks tell them; a trainer's events call `stepped` themselves.
        """
        if self._state == "begun":
            return
        self._state, self.optimizer = "begun", getattr(optimizer, "optimizer", optimizer)
        check_module(model)
        self.model = inside = transformer(unwrapped(model))
        first = next((part for part in inside.modules() if not any(True for _ in part.children())), inside)
        self._handles = [
            inside.register_forward_pre_hook(self._called, with_kwargs=True),
            first.register_forward_pre_hook(self._within),
        ]
        if count and hasattr(self.optimizer, "register_step_post_hook"):
            self._handles.append(self.optimizer.register_step_post_hook(lambda *_: self.stepped()))
        self.reader.reset()
        self.log(self._named("predicted", self.predicted))

    def stepped(self) -> None:
        """The optimizer has stepped; after the second time what was measured so far is logged."""
        self.steps += 1
        if self.steps == SETTLED:
            self._measure()

    def end(self, error: BaseException | None = None) -> None:
        """After the last step, or at an error: log both, say what differs, and write the record."""
        if self._state != "begun":
            return
        self._state = "ended"
        for handle in self._handles:
            handle.remove()
        failed = type(error).__name__ == "OutOfMemoryError"
        self._measure(final=True)
        self._say_lengths()
        if failed:
            self._explain(str(error))
        if self.record is not None and _rank() == 0:
            try:
                append(self._record(failed), self.record)
            except OSError as broken:
                _warn("the record could not be written: %s", broken)

    def _measure(self, final: bool = False) -> None:
        found = self.reader.read()
        if found is None:
            if final:
                _warn("nothing was measured: torch sees no CUDA device here; watch(..., reader=) takes another reader")
            return
        self.measured = {quantity: int(found[quantity]) for quantity in QUANTITIES if quantity in found}
        self.log(self._named("predicted", self.predicted) | self._named("measured", self.measured))

    @staticmethod
    def _named(what: str, sizes: Mapping[str, int]) -> dict[str, float]:
        return {f"willitfit/{what}_{quantity}_bytes": size for quantity, size in sizes.items()}

    def _called(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The model is called: the largest batch, of sequences and tokens."""
        if not module.training or _compiling():
            return
        first = named.get("input_ids", given[0] if given else None)
        shape = tuple(getattr(first, "shape", ()))
        if len(shape) == 2 and (self.longest is None or shape[0] * shape[1] > self.longest[0] * self.longest[1]):
            self.longest = int(shape[0]), int(shape[1])

    def _within(self, module: Any, given: tuple[Any, ...]) -> None:
        """Its first module is called, within autocast if there is any: code and job are compared, once."""
        if not self.model.training or _compiling():
            return
        self._handles.pop(1).remove()
        try:
            self._compare()
        except Exception as error:  # a look must not end a training
            _warn("the code could not be compared with the job: %s: %s", type(error).__name__, error)

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
            _warn("the job in the code is not the job that was predicted: %s%s", said, self._as_in_code())

    def _as_in_code(self) -> str:
        """What would be predicted with the code's settings, as far as a job can have them."""
        changed = change(self.differences)
        job = {**self.answer.job, "training": {**self.answer.job["training"], **changed}}
        try:
            peak = estimate(job).memory.peak_bytes
        except WillItFitError:
            return ""
        fields = ", ".join(changed)
        before = self.predicted["allocated"]
        return f". With the code's {fields}: {gib(peak)} allocated at the peak, in place of {gib(before)}" if changed else ""

    def _say_lengths(self) -> None:
        """Batches that came later may be longer than the first, and than the job's."""
        known = {one.field for one in self.differences}
        training = self.answer.job["training"]
        if self.longest is None or self.steps == 0 or "training.sequence_length" in known:
            return
        if self.longest[1] != training["sequence_length"]:
            one = Difference(field="training.sequence_length", job=training["sequence_length"], code=self.longest[1])
            self.differences.append(one)
            _warn("the largest batch was not the job's: %s", one)

    def _explain(self, message: str) -> None:
        try:
            found = explain(self.answer.job, message)
        except WillItFitError:
            return
        _warn("out of memory: %s%s", found.text, "".join(f"\n  - {one}" for one in found.changes))

    def _record(self, failed: bool) -> RunRecord:
        device = getattr(self.reader, "device", None)
        return RunRecord(
            name=self.name or str(self.answer.job["model"])[:80],
            job=self.answer.job,
            predicted_allocated_bytes=self.predicted["allocated"],
            predicted_reserved_bytes=self.predicted.get("reserved"),
            predicted_total_bytes=self.predicted["total"],
            peak_allocated_bytes=self.measured.get("allocated"),
            peak_reserved_bytes=self.measured.get("reserved"),
            steps=self.steps,
            longest_batch=self.longest,
            out_of_memory=failed,
            differences=self.differences,
            device=device() if callable(device) else None,
            as_of=now(),
            versions=versions(),
        )


def _to_stderr(values: dict[str, float]) -> None:
    said = (
        f"{name.removeprefix('willitfit/').removesuffix('_bytes').replace('_', ' ')} {gib(int(size))}"
        for name, size in values.items()
    )
    print(f"willitfit: {', '.join(said)}", file=sys.stderr)


def _rank() -> int:
    distributed: Any = import_module("torch").distributed
    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else 0


def _compiling() -> bool:
    return bool(import_module("torch").compiler.is_compiling())


def _warn(text: str, *values: object) -> None:
    """Of several processes the first speaks; any of them says that its memory ran out."""
    if _rank() == 0 or text.startswith("out of memory"):
        LOGGER.warning(text, *values)
