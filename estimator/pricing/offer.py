"""An offer: what an instance costs for an hour, and what a run on some of them costs. Money is decimal throughout."""

from __future__ import annotations

from datetime import date
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from estimator.contract.job.hardware import Currency, Kind

SECONDS = {"second": 1, "minute": 60, "hour": 3600}
"""Seconds of each unit in which time is billed."""
OLD_DAYS = 90
"""Age in days from which a price is said to be old."""


class Offer(BaseModel):
    """One row of a price list: an instance with `gpus` accelerators, in one region, paid for in one way."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str
    instance: str
    accelerator: str
    """Name in estimator/hardware/accelerators, where there is one."""
    gpus: Annotated[int, Field(ge=1)]
    vcpus: Annotated[int, Field(ge=1)] | None = None
    memory_gib: Annotated[Decimal, Field(gt=0)] | None = None
    """Memory of the instance's host, GiB."""
    price_per_hour: Annotated[Decimal, Field(gt=0, le=10**6)]
    """Price of the whole instance per hour, in `currency`."""
    currency: Currency
    kind: Kind
    region: str
    increment: Literal["second", "minute", "hour"] | None = None
    """What time is rounded up to; None: to nothing, or the provider does not say."""
    minimum_seconds: Annotated[int, Field(ge=0)] = 0
    source: str = "the user's own list"
    as_of: date

    @property
    def price_per_gpu_hour(self) -> Decimal:
        """Price of one GPU of the instance per hour, in `currency`."""
        return self.price_per_hour / self.gpus

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What is offered once only."""
        return self.provider, self.instance, self.region, self.kind

    def old(self, today: date) -> bool:
        """Whether its price has not been looked at for more than `OLD_DAYS` days."""
        return (today - self.as_of).days > OLD_DAYS


def exact(number: float | Decimal) -> Decimal:
    """A number as it is written, not as it is kept in binary: 0.1 is one tenth."""
    return number if isinstance(number, Decimal) else Decimal(str(number))


def billed_seconds(offer: Offer, hours: float | Decimal) -> Decimal:
    """Seconds that are billed for some hours: rounded up to the increment, the minimum at least."""
    seconds = (exact(hours) * 3600).quantize(Decimal("0.000001"))
    if offer.increment is not None:
        step = SECONDS[offer.increment]
        seconds = (seconds / step).to_integral_value(ROUND_CEILING) * step
    return max(seconds, Decimal(offer.minimum_seconds))


def run_cost(offer: Offer, hours: float | Decimal, instances: int = 1) -> Decimal:
    """What `instances` of an offer cost for a run of some hours: instances × price per hour × billed seconds / 3600."""
    return instances * offer.price_per_hour * billed_seconds(offer, hours) / 3600
