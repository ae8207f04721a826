"""What a job costs: on the cheapest offer that suits it, or on GPUs of one's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from estimator.contract.answer import Cost
from estimator.contract.errors import InvalidValue
from estimator.contract.job import Hardware
from estimator.contract.job.hardware import Owned
from estimator.contract.units import money
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.pricing import spot
from estimator.pricing.energy import facts, kilowatts
from estimator.pricing.offer import Offer, exact, run_cost
from estimator.pricing.prices import age_warning, offers, offers_of
from estimator.timing.run_length import Hours

HOURS_PER_YEAR = 8766
"""365.25 days."""


class Priced(NamedTuple):
    """A cost, and the assumptions and warnings that come with it."""

    cost: Cost | None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def priced(hardware: Hardware, card: Accelerator | None, hours: Hours, today: date) -> Priced:
    """What `hours` on a job's hardware cost: on its own GPUs if it has any, else on what can be rented."""
    if hardware.owned is not None:
        return _owned(hardware, hardware.owned, card, hours)
    name = card.name if card else None
    found = suiting(hardware, name, today)
    if not found:
        asked = " ".join(filter(None, (hardware.rent.kind, hardware.rent.provider, hardware.rent.instance, hardware.rent.region)))
        return Priced(unpriced("no price known" + (f" of {asked}" if asked else ""), hardware, hours))
    return _rented(hardware, found, hours, today)


def unpriced(reason: str, hardware: Hardware | None = None, hours: Hours | None = None) -> Cost:
    """A cost that is not known, and why: never zero for want of a price."""
    nothing = dict.fromkeys(("price_per_gpu_hour", "total", "range_total", "price_as_of", "instances"))
    gpu_hours, bounds = (None, None) if hardware is None or hours is None else _gpu_hours(hardware, hours)
    return Cost(gpu_hours=gpu_hours, range_gpu_hours=bounds, currency="USD", price_source=reason, parts={}, **nothing)


def suiting(hardware: Hardware, name: str | None, today: date) -> list[Offer]:
    """The offers that a job may be priced by.

    Of the accelerator, and as `rent` asks; of what is left those on demand, those whose price is not old, and those in which a
    node's GPUs are together, wherever there are such. `InvalidJob` if they are in several currencies.
    """
    asked = hardware.rent.model_dump(exclude_none=True)
    left = [offer for offer in offers_of(name) if _as_asked(offer, asked)]
    if hardware.rent.kind is None:
        left = _rather([o for o in left if o.kind in ("on-demand", "marketplace")], lambda offer: offer.kind == "on-demand")
    left = _rather(left, lambda offer: not offer.old(today))
    left = _rather(left, lambda offer: offer.gpus >= hardware.gpus)
    if len(currencies := sorted({offer.currency for offer in left})) > 1:
        raise InvalidValue(
            f"prices of {name} are in {' and '.join(currencies)}, which are not converted: name one of them",
            "hardware.rent.currency",
        )
    return left


def suiting_any(hardware: Hardware, today: date) -> list[Offer]:
    """The offers of any accelerator that a job may be rented on, one region of each instance, the cheapest.

    Of the accelerator, if the job names one, and as `rent` asks; without a kind in it, no reserved ones; of each accelerator
    those whose price is not old, wherever there are such.
    """
    asked = hardware.rent.model_dump(exclude_none=True)
    if hardware.gpu:
        asked["accelerator"] = accelerator(hardware.gpu).name
    left = [offer for offer in offers() if _as_asked(offer, asked)]
    if hardware.rent.kind is None:
        left = [offer for offer in left if not offer.kind.startswith("reserved")]
    fresh = {offer.accelerator for offer in left if not offer.old(today)}
    cheapest: dict[tuple[str, str, str, str], Offer] = {}
    for offer in left:
        if offer.accelerator in fresh and offer.old(today):
            continue
        cheapest.setdefault((offer.provider, offer.instance, offer.kind, offer.currency), offer)
    if len(currencies := sorted({offer.currency for offer in cheapest.values()})) > 1:
        raise InvalidValue(
            f"offers are in {' and '.join(currencies)}, which are not converted: name one of them", "hardware.rent.currency"
        )
    return list(cheapest.values())


def _as_asked(offer: Offer, asked: dict[str, str]) -> bool:
    return all(getattr(offer, field).lower() == value.lower() for field, value in asked.items())


def _rather(rows: list[Offer], wanted: Callable[[Offer], bool]) -> list[Offer]:
    """The wanted ones, or all if none is."""
    return [row for row in rows if wanted(row)] or rows


def instances_of(offer: Offer, hardware: Hardware) -> int:
    """How many of an offer hold a job's GPUs, each node's in instances of its own."""
    return hardware.nodes * -(-hardware.gpus // offer.gpus)


def _rented(hardware: Hardware, found: list[Offer], hours: Hours, today: date) -> Priced:
    """The cheapest offer; the range goes to the dearest that rents no more GPUs."""
    gpus = hardware.gpus * hardware.nodes

    def paid(offer: Offer, time: float | Decimal) -> Decimal:
        return run_cost(offer, time, instances_of(offer, hardware))

    best = min(found, key=lambda offer: paid(offer, hours.value))
    rented = instances_of(best, hardware) * best.gpus
    dearest = max((o for o in found if instances_of(o, hardware) * o.gpus <= rented), key=lambda offer: paid(offer, hours.high))
    low, value, high = exact(hours.low), exact(hours.value), exact(hours.high)
    said = []
    if best.gpus < hardware.gpus:
        said.append(
            f"no instance with {hardware.gpus} {best.accelerator} suits: the price is of smaller ones, {best.gpus} in each"
        )
    if best.kind == "spot":
        longer = spot.lengthening(best, instances_of(best, hardware))
        low, value, high = low * longer.low, value * longer.value, high * longer.high
        said.append(spot.said(best, longer))
    gpu_hours, bounds = _gpu_hours(hardware, hours)
    cost = Cost(
        gpu_hours=gpu_hours,
        range_gpu_hours=bounds,
        price_per_gpu_hour=money(instances_of(best, hardware) * best.price_per_hour / gpus),
        total=money(paid(best, value)),
        range_total=(money(paid(best, low)), money(paid(dearest, high))),
        currency=best.currency,
        price_source=f"{best.provider} {best.instance}, {best.kind}: {best.source}",
        price_as_of=best.as_of.isoformat(),
        instances=instances_of(best, hardware),
        parts={},
    )
    return Priced(cost, tuple(said), (age_warning(best.as_of, today),) if best.old(today) else ())


def _owned(hardware: Hardware, owned: Owned, card: Accelerator | None, hours: Hours) -> Priced:
    """Purchase price / (years × 8766 h × utilisation), and kW × PUE × the price of a kWh, for each GPU-hour."""
    power, gpus = kilowatts(hardware, card), hardware.gpus * hardware.nodes
    if power is None:
        raise InvalidValue(
            "is not known of this card: write what one GPU and its share of the server draw", "hardware.owned.power_watts"
        )
    purchase = owned.purchase_price / (owned.lifetime_years * HOURS_PER_YEAR * owned.utilisation)
    low, value, high = (purchase + kw * owned.electricity_price for kw in power)
    used = [gpus * exact(h) for h in (hours.low, hours.value, hours.high)]
    gpu_hours, bounds = _gpu_hours(hardware, hours)
    cost = Cost(
        gpu_hours=gpu_hours,
        range_gpu_hours=bounds,
        price_per_gpu_hour=money(value),
        total=money(used[1] * value),
        range_total=(money(used[0] * low), money(used[2] * high)),
        currency=owned.currency,
        price_source="GPUs of one's own",
        price_as_of=None,
        instances=None,
        parts={"purchase": money(used[1] * purchase), "electricity": money(used[1] * power.value * owned.electricity_price)},
    )
    said = [f"owned: idle hours cost no electricity, and what else they cost the {owned.utilisation:.0%} of use pay; no interest"]
    if owned.pue is None:
        said.append(f"owned: a site takes {facts()['pue'].value:g} times the power of its machines ({facts()['pue'].source})")
    return Priced(cost, tuple(said))


def _gpu_hours(hardware: Hardware, hours: Hours) -> tuple[float, tuple[float, float]]:
    gpus = hardware.gpus * hardware.nodes
    return round(gpus * hours.value, 3), (round(gpus * hours.low, 3), round(gpus * hours.high, 3))
