"""What a run costs, and what it takes of electricity. Money is decimal text."""

from __future__ import annotations

from estimator.contract.answer.part import AnswerPart


class Cost(AnswerPart):
    gpu_hours: float | None
    range_gpu_hours: tuple[float, float] | None
    price_per_gpu_hour: str | None
    """Price of a GPU-hour, decimal text: all rented instances over the GPUs that the job uses, so that unused ones are paid
    for."""
    total: str | None
    """Money for the whole run, as decimal text; null where no price is known, never zero for want of one."""
    range_total: tuple[str, str] | None
    currency: str
    price_source: str
    price_as_of: str | None
    instances: int | None
    """How many instances are rented; null where none is."""
    parts: dict[str, str]
    """What `total` consists of where the GPUs are one's own: purchase and electricity, as decimal text; else empty."""


class Energy(AnswerPart):
    """What the run takes of electricity, cooling and the rest of the site included, and what generating it emits."""

    kwh: float
    range_kwh: tuple[float, float]
    co2e_kg: float
    range_co2e_kg: tuple[float, float]
    grid: str
    """The electricity grid that supplies the site."""
    grams_per_kwh: float
    source: str
