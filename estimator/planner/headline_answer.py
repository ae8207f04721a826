"""The headline question's answer: usual ways of using a model on some hardware."""

from __future__ import annotations

from typing import Any, Literal

from estimator.contract.answer.part import IN_RAM, AnswerPart, Versions, WholeAnswer


class FitRow(AnswerPart):
    """One usual way of using a model on some hardware, and whether it fits."""

    way: str
    spread: str
    """How the model is spread over the GPUs: the strategy and its degrees, in words."""
    fits: bool | None
    verdict: Literal["fits", "tight", "does not fit", "unknown", "does not run"]
    """does not run: a library that the way needs has no kernels for this hardware, whatever its memory."""
    total_bytes: int | None
    peak_bytes: int | None
    peak_phase: str
    headroom_bytes: int | None
    """Bytes that are left of the GPU's capacity, or of the engine's share of it; negative if the model does not fit."""
    would_fit_with: str
    """The smallest change that makes it fit, in words; empty if it fits."""
    would_fit_job: dict[str, Any] | None = None
    """The job with that change, which `estimate` answers; null where there is none that fits."""
    problem: str
    """Why there is no answer; or why it certainly does not fit, where its bytes are not known. Empty otherwise."""
    note: str = ""
    """A remark about `spread`: what a simpler one would need, and why it was not taken."""
    longest_context: int | None = None
    """The longest context that the server would start with, of vLLM, or that llama.cpp holds; null where that is not known."""
    tokens_per_second: float | None = None
    """On all GPUs: tokens of all answers while they are written, or tokens trained on; null where it does not fit, or the speed
    is not known."""
    hours: float | None = None
    """How long a training run of `tokens` takes, all in; null where that was not asked, or is not known."""
    total: str | None = None
    """What such a run costs at `rent`, as it is billed there, as decimal text in its currency."""
    job: dict[str, Any] | None
    """The complete job of this row, which `estimate` answers in full."""


class HourlyPrice(AnswerPart):
    """The cheapest offer in which the GPUs of a node are together."""

    price_per_hour: str
    """Of all instances together, as decimal text in `currency`."""
    currency: str
    provider: str
    instance: str
    instances: int
    kind: str
    region: str
    price_as_of: str


class Fit(WholeAnswer):
    """The headline question's answer: every usual way of using a model on some hardware."""

    model: str
    hardware: str
    parameters: int | None
    """Null of a model that no family here describes, and nothing installed can count."""
    capacity_bytes: int | None
    rent: HourlyPrice | None = None
    """What an hour of the hardware costs at least; null where no price of it is known."""
    rows: list[FitRow]
    assumptions: list[str]
    versions: Versions

    @property
    def timed(self) -> bool:
        """Whether the speed of any row is known."""
        return any(row.tokens_per_second is not None for row in self.rows)

    @property
    def in_ram(self) -> bool:
        """Whether it was asked of a machine without a GPU."""
        return any(row.spread == IN_RAM for row in self.rows)
