"""What explains a measured record, as Python, the command line and REST give it."""

from __future__ import annotations

from typing import Any, Literal

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer
from estimator.timelines.answers import StepTensor


class MeasuredRow(AnswerPart):
    """A quantity that was measured, beside the predicted one."""

    quantity: str
    """allocated | reserved | used | weights | activation | non_torch | cuda_graph | cache | compute | cache_tokens."""
    measured: int
    """Bytes; of cache_tokens, tokens."""
    within: int
    """How far `measured` may be off, as it was printed with so many digits."""
    predicted: int | None
    """Null where this job has no such figure."""


class Culprit(StepTensor):
    """An allocation of the job that is as large as the one that failed, and at which about as much was allocated."""

    step: Literal["load", "first", "later"]
    """While the model is loaded, in the first step (in which the optimizer makes its states at the end), or in any later one."""
    allocated_bytes: int
    """What is allocated before it, as predicted."""
    count: int
    """How many allocations of the step are as large and of the same operation and component."""


class SizeRow(AnswerPart):
    """Tensors of one size that are alive at the peak: measured, and predicted."""

    bytes: int
    measured: int
    predicted: int


class Hypothesis(AnswerPart):
    """A reason that would explain the difference: an estimate with that setting."""

    slug: str
    text: str
    change: dict[str, Any]
    """What was changed in the job; empty where it is reckoned from the record alone."""
    predicted_bytes: int | None
    difference_bytes: int
    """Measured less predicted, of the quantity that is compared, with that setting."""
    removed: float
    """Share of the difference that it removes: 1 is all of it, less than nothing is worse than before."""
    explains: bool
    """Whether what is left is within what the record and the estimate can tell apart."""
    culprit: Culprit | None


class Explanation(WholeAnswer):
    """A measured record lined up with a job."""

    kind: str
    """What the record is: "out of memory", "memory snapshot of torch", "vLLM log", …"""
    verdict: Literal["as predicted", "explained", "partly explained", "not explained"]
    text: str
    compared: str
    """The quantity of which the difference is explained."""
    difference_bytes: int | None
    """Measured less predicted; null where the job has nothing to compare."""
    rows: list[MeasuredRow]
    requested_bytes: int | None
    """Of an allocation that failed, the bytes that were asked of the driver."""
    culprit: Culprit | None
    sizes: list[SizeRow]
    """Of a snapshot: sizes of tensors of which it has more or fewer at the peak than predicted, most bytes first."""
    hypotheses: list[Hypothesis]
    """Those that remove a part of the difference, the best first."""
    changes: list[str]
    """What would avoid the failed allocation on a GPU of that capacity, each tried."""
    job: dict[str, Any]
    versions: Versions
