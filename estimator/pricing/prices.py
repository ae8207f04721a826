"""What GPUs cost to rent: the dated price list, and a run's GPU-hours in money."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from estimator import catalogue
from estimator.answer import Cost
from estimator.units import money

FILE = Path(__file__).parent / "prices.yaml"
CURRENCY = "USD"


class Price(BaseModel):
    """One row of the price list: an instance with `gpus` accelerators."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str
    instance: str
    accelerator: str
    gpus: int
    usd_per_hour: Decimal
    kind: Literal["on-demand", "marketplace"]
    region: str
    source: str
    as_of: date

    @property
    def usd_per_gpu_hour(self) -> Decimal:
        return self.usd_per_hour / self.gpus


@cache
def price_list() -> tuple[Price, ...]:
    """Every row, cheapest per GPU-hour first."""
    rows = [Price.model_validate(row) for row in catalogue.load_yaml(FILE)["prices"]]
    return tuple(sorted(rows, key=lambda row: row.usd_per_gpu_hour))


def prices_of(accelerator: str) -> list[Price]:
    """On-demand rows of an accelerator, cheapest first; marketplace rows only if there are no others."""
    rows = [row for row in price_list() if row.accelerator == accelerator]
    return [row for row in rows if row.kind == "on-demand"] or rows


def unpriced(reason: str, gpu_hours: float | None = None, range_gpu_hours: tuple[float, float] | None = None) -> Cost:
    """A cost that is not known, and why: never zero for want of a price."""
    nothing = dict.fromkeys(("price_per_gpu_hour", "total", "range_total", "price_as_of"))
    return Cost(gpu_hours=gpu_hours, range_gpu_hours=range_gpu_hours, currency=CURRENCY, price_source=reason, **nothing)


def cost(gpu_hours: float, low: float, high: float, accelerator: str | None) -> Cost:
    """GPU-hours at the cheapest known price; the range goes to the dearest. Without a price, no money: not zero."""
    rows = prices_of(accelerator) if accelerator else []
    hours, bounds = round(gpu_hours, 3), (round(low, 3), round(high, 3))
    if not rows:
        return unpriced("no price known", hours, bounds)
    best, worst = rows[0], rows[-1]
    return Cost(
        gpu_hours=hours,
        range_gpu_hours=bounds,
        currency=CURRENCY,
        price_per_gpu_hour=money(best.usd_per_gpu_hour),
        total=money(Decimal(str(gpu_hours)) * best.usd_per_gpu_hour),
        range_total=(money(Decimal(str(low)) * best.usd_per_gpu_hour), money(Decimal(str(high)) * worst.usd_per_gpu_hour)),
        price_source=f"{best.provider} {best.instance}, {best.kind}: {best.source}",
        price_as_of=best.as_of.isoformat(),
    )
