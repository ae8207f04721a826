"""What a run takes of electricity, and what that emits.

kWh = GPUs × W/1000 × hours × PUE, where W is what a GPU and its share of the node draw: given, or the GPU's thermal design
power × `node_power`. kg CO2e = kWh × g/kWh of the grid / 1000. The facts and their ranges are in energy.yaml.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from pathlib import Path

from estimator.contract.answer import Energy
from estimator.contract.errors import InvalidValue, did_you_mean
from estimator.contract.job import Hardware
from estimator.facts import catalogue
from estimator.facts.fact import Fact, MeasuredFact
from estimator.facts.spelling import LONGEST, shown
from estimator.hardware.accelerator import Accelerator
from estimator.pricing.offer import exact
from estimator.pricing.spot import Spread
from estimator.timing.run_length import Hours

FILE = Path(__file__).parent / "energy.yaml"


@cache
def facts() -> dict[str, MeasuredFact]:
    """The facts `node_power` and `pue` of energy.yaml, by name."""
    return {name: MeasuredFact.model_validate(catalogue.shipped(FILE)[name]) for name in ("node_power", "pue")}


@cache
def grids() -> dict[str, Fact]:
    """g CO2e per kWh, by the place whose electricity it is."""
    shared = {key: value for key, value in catalogue.shipped(FILE)["grid"].items() if key != "places"}
    return {
        name: Fact(value=place["value"], note=f"{place['name']}, {place['year']}", **shared)
        for name, place in catalogue.shipped(FILE)["grid"]["places"].items()
    }


def grid(name: str | None) -> Fact:
    """The grid of a place, or of the world; `InvalidJob` if it is not known."""
    if name is None:
        return grids()["world"]
    found = grids().get(name.strip().lower())
    if found is None:
        near = did_you_mean(name[:LONGEST], grids()) or f" Known are {', '.join(grids())}."
        raise InvalidValue(f"no grid is called {shown(name)}.{near}", "hardware.grid")
    return found


def kilowatts(hardware: Hardware, card: Accelerator | None) -> Spread | None:
    """What a GPU takes of the site's electricity while it computes, in kW; None if its power is not known."""
    owned, (node, pue) = hardware.owned, (_spread(facts()[name]) for name in ("node_power", "pue"))
    if owned is not None and owned.pue is not None:
        pue = Spread(owned.pue, owned.pue, owned.pue)
    if owned is not None and owned.power_watts is not None:
        watts = Spread(owned.power_watts, owned.power_watts, owned.power_watts)
    elif card is not None and card.power is not None:
        watts = Spread(*(exact(card.power.value) * part for part in node))
    else:
        return None
    return Spread(*(w * p / 1000 for w, p in zip(watts, pue, strict=True)))


def _spread(fact: MeasuredFact) -> Spread:
    return Spread(exact(fact.low), exact(fact.value), exact(fact.high))


def energy(hardware: Hardware, card: Accelerator | None, gpus: int, hours: Hours) -> Energy | None:
    """The electricity and the emissions of a run on `gpus` in all; None if the power of a GPU is not known."""
    power, place = kilowatts(hardware, card), grid(hardware.grid)
    if power is None:
        return None
    low, value, high = (gpus * kw * exact(h) for kw, h in zip(power, (hours.low, hours.value, hours.high), strict=True))
    grams = exact(place.value)
    return Energy(
        kwh=_rounded(value),
        range_kwh=(_rounded(low), _rounded(high)),
        co2e_kg=_rounded(value * grams / 1000),
        range_co2e_kg=(_rounded(low * grams / 1000), _rounded(high * grams / 1000)),
        grid=place.note,
        grams_per_kwh=place.value,
        source=f"{_drawn(hardware, card)}; {place.source}",
    )


def _drawn(hardware: Hardware, card: Accelerator | None) -> str:
    """Where the power comes from."""
    if hardware.owned is not None and hardware.owned.power_watts is not None:
        return f"{hardware.owned.power_watts} W for each GPU"
    assert card is not None
    assert card.power is not None
    return f"{card.name}'s {card.power.value:g} W ({card.power.source}) × {facts()['node_power'].value:g} for the node"


def _rounded(amount: Decimal) -> float:
    return float(round(amount, 3))
