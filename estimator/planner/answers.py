"""The planner's answers: limits, ways to rent what a job needs, what makes a file's job fit, what differs between two jobs."""

from __future__ import annotations

from typing import Any, Literal

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer


class TriedValue(AnswerPart):
    """A job with one of its numbers changed."""

    value: int
    fits: bool | None
    verdict: Literal["fits", "tight", "does not fit", "unknown", "refused"]
    """refused: the model, the framework or the rest of the job does not go with it, whatever the memory."""
    total_bytes: int | None
    """What is needed of one GPU; null where the job is refused."""
    peak_bytes: int | None
    reason: str


class Limit(WholeAnswer):
    """The largest or the smallest value of a number in a job with which it fits."""

    field: str
    """The number's dotted name, such as training.sequence_length."""
    bound: Literal["max", "min"]
    value: int | None
    """null where no value that was tried fits, or where it is not known."""
    fits: bool | None
    """Whether it fits with any value; null where no hardware was given."""
    limited_by: Literal["memory", "host", "refused", "range"] | None
    """What is in the way of the next value: a GPU's memory, a node's own, that the job would be refused, or the end of what the
    field takes; null without a value."""
    reason: str
    at: TriedValue | None
    """The job at the value; where none fits, at the one that needs least of those that were tried."""
    next: TriedValue | None
    """The next value, which does not fit, or is refused; null at the end of what the field takes."""
    untried: int
    """Values beyond this one that were not estimated although their tensors fit: what a caching allocator holds jumps from one
    to the next. 0: none of them fits."""
    estimates: int
    """How many values were estimated."""
    job: dict[str, Any] | None
    """The complete job at the value, which `estimate` answers in full."""
    assumptions: list[str]
    versions: Versions


class BudgetRow(AnswerPart):
    """One way to rent what a job needs."""

    within: bool
    """Whether hours and money are within the limits that were given."""
    provider: str
    instance: str
    kind: str
    region: str
    instances: int
    accelerator: str
    gpus: int
    """GPUs of all rented instances together."""
    strategy: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    hours: float
    """Duration of the run in hours, with what interruptions of a spot instance are expected to add."""
    range_hours: tuple[float, float]
    gpu_hours: float
    total: str
    range_total: tuple[str, str]
    currency: str
    bottleneck: str
    price_as_of: str
    price_source: str
    warning: str
    """A warning about the price, such as its age; empty if there is none."""
    job: dict[str, Any]
    """The complete job as it would run on these instances, which `estimate` answers in full."""


class Budget(WholeAnswer):
    """Ways to rent what a job needs, cheapest first; or, where none is within the limits, the nearest to them."""

    possible: bool
    reason: str
    compared: int
    """How many ways to rent were compared: those whose peak fits."""
    rows: list[BudgetRow]
    assumptions: list[str]
    versions: Versions


class Edit(AnswerPart):
    """A setting of a file that is changed."""

    key: str
    """The setting as the file writes it, with dots between a section and what is in it."""
    line: int | None
    """Where it stands, from 1 on; null for one that is added."""
    before: Any
    """What the file says; null where it says nothing."""
    after: Any

    @property
    def setting(self) -> str:
        """The setting as it is to be, in a line: gradient_checkpointing: true."""
        return f"{self.key}: {shown_value(self.after)}"


def shown_value(value: Any) -> str:
    """A value of a setting as files write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Change(AnswerPart):
    """Edits of a file that belong together: one change of its job."""

    field: str
    """The job's field that they change."""
    edits: list[Edit]
    same_result: bool
    """Whether the same is computed, up to rounding."""
    saved_bytes: int
    """Bytes of one GPU that it saves, after the changes before it."""
    slower: float | None
    """The share by which a token takes longer, after the changes before it; negative where it is sooner, null where no time is
    known."""


class Fix(AnswerPart):
    """Changes with which a file's job fits."""

    changes: list[Change]
    same_result: bool
    verdict: Literal["fits", "tight"]
    reason: str
    total_bytes: int
    slower: float | None
    """The share by which a token takes longer than in the file as it is."""
    patch: str
    """The edits as a unified diff, for `patch -p0`."""


class Fixes(WholeAnswer):
    """The smallest edits that make a file's job fit, in the file's own keys."""

    framework: str
    version: str
    fits: bool | None
    """Whether it fits as it is; null where no hardware was given."""
    reason: str
    total_bytes: int
    capacity_bytes: int | None
    fixes: list[Fix]
    """What makes it fit, the smallest first; each was read and estimated again. Empty where it fits, or nothing was found."""
    problem: str
    """Why there is no fix; empty where there is one, or none is needed."""
    assumptions: list[str]
    versions: Versions


class Side(AnswerPart):
    """One of two jobs that are compared."""

    framework: str
    """Whose file it is; willitfit, of a job."""
    version: str
    fits: bool | None
    verdict: Literal["fits", "tight", "does not fit", "unknown"]
    total_bytes: int
    """What is needed of one GPU."""
    peak_bytes: int
    peak_phase: str
    tokens_per_second: float | None
    """Of all GPUs in training; null where no time is known, and of a served model."""
    said: list[str]
    """What is said of this job and not of the other: what was left out and filled in, assumptions and warnings."""


class SettingDifference(AnswerPart):
    """A field of a job that has another value in the other, after defaults."""

    field: str
    a: Any
    b: Any
    why_a: str
    """Where a default gave the first its value, why; empty where the job says it."""
    why_b: str


class BytesDifference(AnswerPart):
    """A part of what is needed of one GPU."""

    name: str
    a_bytes: int
    b_bytes: int


class SecondsDifference(AnswerPart):
    """A part of the time of a step."""

    name: str
    a_seconds: float
    b_seconds: float


class Differences(WholeAnswer):
    """What differs between two jobs: settings, then memory at the peak by part, then the time of a step by part."""

    a: Side
    b: Side
    settings: list[SettingDifference]
    memory: list[BytesDifference]
    """Parts that differ, the largest difference first; together they are the difference of `total_bytes`."""
    seconds: list[SecondsDifference]
    """Parts that differ, the largest difference first; empty where the time of one is not known."""
    versions: Versions
