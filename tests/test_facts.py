"""Every fact that ships: it has a unit, a source and a day, and a value that can be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest

from estimator import catalogue, estimate
from estimator.facts import Fact, MeasuredFact
from estimator.hardware.accelerator import FOLDER, accelerator
from estimator.pricing import energy, spot
from estimator.runtime import overheads
from estimator.specs.published import model_folder, published
from estimator.timing.step import efficiencies

CARDS = catalogue.names(FOLDER)
UNITS = {
    "MiB",
    "GB/s",
    "TFLOP/s",
    "parameters",
    "share of dense peak",
    "share of memory bandwidth",
    "share of allocated bytes",
    "share of the framebuffer",
    "W",
    "W of a node per W of its GPUs' TDP",
    "W of a site per W of its nodes",
    "gCO2e/kWh",
    "hours for each instance that is taken back",
}
OLDEST = date(2023, 1, 1)


def facts() -> Iterator[tuple[str, Fact]]:
    """Every fact of every catalogue, with its address."""
    for name in CARDS:
        card = accelerator(name)
        yield f"{name}.memory", card.memory
        yield f"{name}.framebuffer", card.framebuffer
        yield f"{name}.memory_bandwidth", card.memory_bandwidth
        yield from ((f"{name}.peak.{kind}", fact) for kind, fact in card.peak.items())
        if card.power is not None:
            yield f"{name}.power", card.power
    yield from ((f"{name}.parameters", fact) for name in catalogue.names(model_folder()) if (fact := published(name).parameters))
    yield from ((f"overheads.{name}", fact) for name, fact in overheads.facts().items())
    yield from ((f"efficiency.{name}", fact) for name, fact in efficiencies().items())
    yield from ((f"energy.{name}", fact) for name, fact in energy.facts().items())
    yield from ((f"grid.{name}", fact) for name, fact in energy.grids().items())
    yield "spot.hours_lost", spot.hours_lost()


@pytest.mark.parametrize(("where", "fact"), list(facts()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_fact_can_be_checked(where: str, fact: Fact) -> None:
    assert fact.unit in UNITS
    assert len(fact.source) > 10
    assert fact.as_of >= OLDEST
    assert fact.value > 0 or where == "overheads.fragmentation"
    if isinstance(fact, MeasuredFact):
        assert fact.low <= fact.value <= fact.high
    if fact.unit.startswith("share"):
        assert 0 <= fact.value <= 1
    assert fact.verified or fact.note or "from memory" in fact.source, "an unverified fact says why"


def test_there_are_enough_cards() -> None:
    assert len(CARDS) >= 15


@pytest.mark.parametrize("name", CARDS)
def test_a_process_gets_less_than_the_card_is_sold_with(name: str) -> None:
    card = accelerator(name)
    share = card.memory.value / card.framebuffer.value
    assert 0.85 < share < 1 or (share == 1 and card.vendor == "amd")  # ROCm hides nothing


@pytest.mark.parametrize("name", CARDS)
def test_any_name_finds_the_card(name: str) -> None:
    for alias in (name, *accelerator(name).aliases):
        for written in (alias, alias.upper(), alias.lower()):
            assert accelerator(written).name == name


def test_no_two_cards_share_a_name() -> None:
    owners: dict[str, str] = {}
    for name in CARDS:
        for alias in {catalogue.folded(a) for a in (name, *accelerator(name).aliases)}:
            assert owners.setdefault(alias, name) == name, alias


def test_training_costs_its_tokens() -> None:
    """Twice the tokens cost twice as much; six FLOPs per parameter and token are the least that they take."""
    job = {"model": "llama-2-7b", "hardware": {"gpu": "a100-80gb", "gpus": 8}, "training": {"precision": "bf16-true"}}
    once = estimate({**job, "training": {"tokens": "100M"}})
    twice = estimate({**job, "training": {"tokens": "200M"}})
    assert once.cost is not None
    assert twice.cost is not None
    assert once.cost.gpu_hours is not None
    assert twice.cost.gpu_hours == pytest.approx(2 * once.cost.gpu_hours, rel=0.001)
    assert once.time is not None
    tokens = 2048
    assert once.time.flops_per_step > 8 * 6.4e9 * tokens  # recomputation makes it eight
    assert once.time.flops_per_step < 10 * 6.8e9 * tokens


def test_serving_costs_its_hours() -> None:
    job = {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "l40s", "gpus": 2}, "parallelism": {"tensor": 2}}
    found = estimate({**job, "serving": {"hours": 24}}).cost
    assert found is not None
    assert found.gpu_hours == 48
    assert found.total is not None
