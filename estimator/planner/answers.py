"""The planner's answers: usual ways of using a model on some hardware, and ways to rent what a job needs."""

from __future__ import annotations

from typing import Any, Literal

from estimator.contract.answer import AnswerPart, Versions, as_text


class FitRow(AnswerPart):
    """One usual way of using a model on some hardware, and whether it fits."""

    way: str
    spread: str
    """How it is spread over the GPUs."""
    fits: bool | None
    verdict: Literal["fits", "tight", "does not fit", "unknown", "does not run"]
    """does not run: a library that the way needs has no kernels for this hardware, whatever its memory."""
    total_bytes: int | None
    peak_bytes: int | None
    peak_phase: str
    headroom_bytes: int | None
    """What is left of the card, or of the engine's share of it; negative if it does not fit."""
    would_fit_with: str
    """The smallest change that makes it fit; empty if it does."""
    problem: str
    """Why there is no answer; or, where it does not fit for certain though its bytes are not known, why not."""
    note: str = ""
    """What to know of the spread: what a simpler one would need, and why."""
    job: dict[str, Any] | None
    """The whole job, to ask for the answer in full."""


class Fit(AnswerPart):
    """The headline question's answer: every usual way of using a model on some hardware."""

    model: str
    hardware: str
    parameters: int
    capacity_bytes: int | None
    rows: list[FitRow]
    assumptions: list[str]
    versions: Versions

    def to_json(self) -> str:
        """The one text form, as of `Answer`."""
        return as_text(self)


class BudgetRow(AnswerPart):
    """One way to rent what a job needs."""

    within: bool
    """Whether it is within the limits."""
    provider: str
    instance: str
    kind: str
    region: str
    instances: int
    accelerator: str
    gpus: int
    """Of all instances."""
    strategy: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    hours: float
    """Of the run, by the clock; with what interruptions of a spot instance are expected to add."""
    range_hours: tuple[float, float]
    gpu_hours: float
    total: str
    range_total: tuple[str, str]
    currency: str
    bottleneck: str
    price_as_of: str
    price_source: str
    warning: str
    """Empty, or what to know of the price."""
    job: dict[str, Any]
    """The job as it would run there, to ask for the answer in full."""


class Budget(AnswerPart):
    """Ways to rent what a job needs, cheapest first; or the nearest to what was asked."""

    possible: bool
    reason: str
    compared: int
    """Ways whose peak fits."""
    rows: list[BudgetRow]
    assumptions: list[str]
    versions: Versions

    def to_json(self) -> str:
        """The one text form, as of `Answer`."""
        return as_text(self)
