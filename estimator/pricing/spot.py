"""Interruptions of spot instances: how often they come, and the hours that are run again.

With n instances, each taken back at the rate r (1/hour), one is lost every 1/(n·r) hours, and with it L hours of all of them:
work since the last checkpoint, a new instance, the program's start. A run that needs T hours of work takes W = T + n·r·L·W, so W
= T / (1 − n·r·L). The rate follows from the share p of instances that are taken back in a month: r = −ln(1 − p) / (730 hours).
The shares and L are in spot.yaml, with their sources.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import NamedTuple

from estimator.contract.errors import InvalidValue
from estimator.facts import catalogue
from estimator.facts.fact import MeasuredFact
from estimator.pricing.offer import Offer, exact

FILE = Path(__file__).parent / "spot.yaml"
HOURS_PER_MONTH = 730
UNKNOWN = "unknown"


class Spread(NamedTuple):
    """Something that lies between two bounds."""

    low: Decimal
    value: Decimal
    high: Decimal


@cache
def bands() -> dict[str, Spread]:
    """The share of instances that are taken back in a month, by the name of its band."""
    return {name: Spread(*map(Decimal, shares)) for name, shares in catalogue.shipped(FILE)["bands"]["shares"].items()}


@cache
def hours_lost() -> MeasuredFact:
    """Hours of the whole run that are lost with an instance."""
    return MeasuredFact.model_validate(catalogue.shipped(FILE)["hours_lost"])


def band_of(offer: Offer) -> str:
    """The band that the provider publishes for an instance, or `UNKNOWN`."""
    published = catalogue.shipped(FILE)["instances"].get(offer.provider, {})
    return next((band for band, instances in published.items() if offer.instance in instances), UNKNOWN)


def lengthening(offer: Offer, instances: int) -> Spread:
    """By what a run's hours grow on `instances` of a spot offer, 1 for none; `InvalidJob` if it gets no further."""
    share, lost = bands()[band_of(offer)], hours_lost()
    parts = [
        1 + instances * (1 - part).ln() / HOURS_PER_MONTH * exact(hours)
        for part, hours in zip(share, (lost.low, lost.value, lost.high), strict=True)
    ]
    if min(parts) <= 0:
        raise InvalidValue(
            f"of {instances} {offer.provider} {offer.instance} one may be taken back sooner than a checkpoint is reached: "
            "use fewer, or leave kind: spot out",
            "hardware.rent.kind",
        )
    return Spread(*(1 / part for part in parts))


def said(offer: Offer, longer: Spread) -> str:
    """What is taken for granted about interruptions."""
    band, lost = band_of(offer), hours_lost()
    published = "not published" if band == UNKNOWN else f"{band.replace('%', ' %')} a month, as the provider publishes"
    return (
        f"spot: instances taken back are {published}; each loses the run {lost.value:g} h ({lost.low:g} to {lost.high:g}), "
        f"and lengthens it by {longer.value - 1:.1%}"
    )
