"""What it costs to rent some hardware: the cheapest offer in which a node's GPUs are together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Hardware
from estimator.contract.units import money
from estimator.facts import catalogue
from estimator.hardware.node import FOLDER as NODES
from estimator.planner.amounts import Money
from estimator.planner.budget import rented_for
from estimator.planner.headline_answer import HourlyPrice
from estimator.pricing.cost import instances_of, suiting
from estimator.pricing.offer import Offer, run_cost
from estimator.pricing.prices import offers
from estimator.timing.run_length import Hours


class Rentable(NamedTuple):
    """An offer, and how many instances of it hold some hardware."""

    offer: Offer
    instances: int

    @property
    def hourly(self) -> Decimal:
        """What an hour of all instances costs."""
        return self.instances * self.offer.price_per_hour


class Rented(NamedTuple):
    """An offer, how many of it, and what an hour and the whole run cost there."""

    offer: Offer
    instances: int
    hourly: Decimal
    hours: Hours | None
    total: Decimal | None

    @property
    def said(self) -> HourlyPrice:
        """What an hour costs, as an answer says it."""
        return HourlyPrice(
            price_per_hour=money(self.hourly),
            currency=self.offer.currency,
            provider=self.offer.provider,
            instance=self.offer.instance,
            instances=self.instances,
            kind=self.offer.kind,
            region=self.offer.region,
            price_as_of=self.offer.as_of.isoformat(),
        )

    def paid(self, hours: float) -> str:
        """What some hours cost, as they are billed, as an answer says it."""
        return money(run_cost(self.offer, hours, self.instances))


def rentable(hardware: Hardware, name: str, today: date) -> list[Rentable]:
    """The offers of an accelerator that hold some hardware, as `hardware.rent` asks. Raises `InvalidJob` as `suiting` does."""
    found = (offer for offer in suiting(hardware, name, today) if offer.gpus >= hardware.gpus)  # rented together
    return [Rentable(offer, instances_of(offer, hardware)) for offer in found]


def cheapest(every: Iterable[Rentable], hours: Hours | None) -> Rented | None:
    """The cheapest of them, by what the run costs, or by the hour where its length is not known; None where there is none."""
    known: list[Rented] = []
    for one in every:
        run = None if hours is None else rented_for(one.offer, one.instances, hours)
        if hours is None or run is not None:
            known.append(Rented(*one, one.hourly, *(run or (None, None))))
    return min(known, key=lambda one: one.hourly if one.total is None else one.total, default=None)


def cheapest_hour(hardware: Hardware, name: str, written: str = "") -> Rented | None:
    """Where an hour of some hardware costs least, of the instance that was `written` if it is one; None where no price of it is
    known, or only in several currencies. The newest price in the list is today's: the answer says its day."""
    words = [word for word in written.lower().split() if catalogue.known((NODES,), word)]
    named = next((offer.instance for offer in offers() if offer.accelerator == name and offer.instance.lower() in words), None)
    if named:
        rent = hardware.rent.model_copy(update={"instance": named})
        hardware = hardware.model_copy(update={"rent": rent})
    try:
        found = rentable(hardware, name, max((offer.as_of for offer in offers()), default=date.min))
    except InvalidJob:
        return None
    return cheapest(found, None)


class Broken(NamedTuple):
    """A limit that a run does not keep: hours that it takes, or what is paid, for the run or for an hour, as the limit is."""

    hours: float | None = None
    paid: Decimal | None = None


NOT_KNOWN = Broken()
"""Whether a limit is kept is not known."""


class Within(NamedTuple):
    """What was asked of the run: how many hours it may take, and what it may cost."""

    hours: float | None
    money: Money | None

    def broken(self, rented: Rented | None, hours: Hours | None) -> Broken | None:
        """The first limit that is not kept; None if all are. `hours`: what the run takes where it is not rented."""
        took = rented.hours if rented is not None and rented.hours is not None else hours
        if self.hours is not None:
            if took is None:
                return NOT_KNOWN
            if took.value > self.hours:
                return Broken(hours=took.value)
        if self.money is not None:
            paid = None if rented is None else rented.hourly if self.money.hourly else rented.total
            if paid is None:
                return NOT_KNOWN
            if paid > self.money.amount:
                return Broken(paid=paid)
        return None
