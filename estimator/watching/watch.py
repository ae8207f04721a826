"""A training watched: the prediction before its first step, what was measured after, and where code and job differ."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
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
from estimator.watching.code import transformer, unwrapped
from estimator.watching.differences import Difference
from estimator.watching.look import Look, rank, warn
from estimator.watching.reader import QUANTITIES, Cuda, Reader
from estimator.watching.run_record import RunRecord, append, now, versions

KEPT = 1000
"""Steps whose seconds are remembered, the last ones."""
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
        self.look = Look(answer)
        self.steps = 0
        self.seconds: deque[float] = deque(maxlen=KEPT)
        self._last: float | None = None
        self._counter: Any = None
        self._state = "new"

    @property
    def differences(self) -> list[Difference]:
        """Where code and job differ, as far as was seen."""
        return self.look.differences

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
        self.model = transformer(unwrapped(model))
        self.look.begin(self.model, self.optimizer)
        if count and hasattr(self.optimizer, "register_step_post_hook"):
            self._counter = self.optimizer.register_step_post_hook(lambda *_: self.stepped())
        self.reader.reset()
        self.log(self._named("predicted", self.predicted))

    def stepped(self) -> None:
        """The optimizer has stepped; after the second time what was measured so far is logged."""
        self.steps += 1
        moment = perf_counter()
        if self._last is not None and self.steps > SETTLED:
            self.seconds.append(moment - self._last)
        self._last = moment
        if self.steps == SETTLED:
            self._measure()

    def end(self, error: BaseException | None = None) -> None:
        """After the last step, or at an error: log both, say what differs, and write the record."""
        if self._state != "begun":
            return
        self._state = "ended"
        if self._counter is not None:
            self._counter.remove()
        failed = type(error).__name__ == "OutOfMemoryError"
        self._measure(final=True)
        self.look.end(self.steps)
        if failed:
            self._explain(str(error))
        if self.record is not None and rank() == 0:
            try:
                append(self._record(failed), self.record)
            except OSError as broken:
                warn("the record could not be written: %s", broken)

    def _measure(self, final: bool = False) -> None:
        found = self.reader.read()
        if found is None:
            if final:
                warn("nothing was measured: torch sees no CUDA device here; watch(..., reader=) takes another reader")
            return
        self.measured = {quantity: int(found[quantity]) for quantity in QUANTITIES if quantity in found}
        self.log(self._named("predicted", self.predicted) | self._named("measured", self.measured))

    @staticmethod
    def _named(what: str, sizes: Mapping[str, int]) -> dict[str, float]:
        return {f"willitfit/{what}_{quantity}_bytes": size for quantity, size in sizes.items()}

    def _explain(self, message: str) -> None:
        try:
            found = explain(self.answer.job, message)
        except WillItFitError:
            return
        warn("out of memory: %s%s", found.text, "".join(f"\n  - {one}" for one in found.changes))

    def _record(self, failed: bool) -> RunRecord:
        device, used = (getattr(self.reader, name, None) for name in ("device", "used"))
        return RunRecord(
            name=self.name or str(self.answer.job["model"])[:80],
            job=self.answer.job,
            predicted_allocated_bytes=self.predicted["allocated"],
            predicted_reserved_bytes=self.predicted.get("reserved"),
            predicted_total_bytes=self.predicted["total"],
            peak_allocated_bytes=self.measured.get("allocated"),
            peak_reserved_bytes=self.measured.get("reserved"),
            used_bytes=used() if callable(used) else None,
            step_seconds=median(self.seconds) if self.seconds else None,
            steps=self.steps,
            longest_batch=self.look.longest,
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
