"""The whole answer to a job, as `estimate` gives it."""

from __future__ import annotations

from typing import Any, Literal

from estimator.contract.answer.cost import Cost, Energy
from estimator.contract.answer.memory import HostMemory, Memory
from estimator.contract.answer.part import AnswerPart, Versions, WholeAnswer
from estimator.contract.answer.ranks import Rank, Recomputation, Traffic
from estimator.contract.answer.time import Course, ServingTime, Time


class Parameters(AnswerPart):
    total: int
    trainable: int
    active: int | None
    """Those that one token uses; null of a mixture that no family here describes."""


class Note(AnswerPart):
    """A sentence beside the numbers."""

    kind: Literal["assumption", "default", "warning", "suggestion", "not modelled"]
    slug: str
    """What it stands for, by which a program knows it: "what-stays"."""
    about: str | None
    """The field of the job that it is about; null of no single one."""
    text: str


class Answer(WholeAnswer):
    """fits: None where the honest answer is "unknown", with the reason in `verdict`."""

    fits: bool | None
    verdict: Literal["fits", "tight", "does not fit", "unknown"]
    reason: str
    memory: Memory
    host: HostMemory | None
    parameters: Parameters
    time: Time | None
    """An optimizer step, or of a served model a decoding step; null where no time is known."""
    serving: ServingTime | None = None
    """Throughput and latency of a served model; null for a training job or an unnamed card."""
    run: Course | None = None
    communication: list[Traffic] = []
    """What the rank that needs most memory exchanges with others in an optimizer step."""
    ranks: list[Rank] = []
    """Pipeline stages that differ, as compared to find the one that needs most memory, or all stages where they were
    requested; empty without a pipeline."""
    recomputation: Recomputation | None = None
    """What activation checkpointing costs and saves; null where nothing is recomputed."""
    cost: Cost | None
    energy: Energy | None
    job: dict[str, Any]
    """The job with every default filled in."""
    assumptions: list[str]
    warnings: list[str]
    suggestions: list[str]
    not_modelled: list[str]
    notes: list[Note]
    """The sentences of the four lists above as values, in the same order; a default's text is there without its prefix."""
    versions: Versions
