"""Every fact that ships: it has a unit, a source and a day, and a value that can be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal

import pytest

from estimator import catalogue, estimate
from estimator.facts import Fact, MeasuredFact
from estimator.hardware.accelerator import FOLDER, accelerator
from estimator.pricing.prices import cost, price_list, prices_of
from estimator.runtime import overheads
from estimator.specs.published import model_folder, published
from estimator.timing.step import efficiencies

CARDS = catalogue.names(FOLDER)
UNITS = {
    "MiB",
    "GB/s",
    "links",
    "TFLOP/s",
    "parameters",
    "share of dense peak",
    "share of memory bandwidth",
    "share of allocated bytes",
    "share of the framebuffer",
}
OLDEST = date(2023, 1, 1)


def facts() -> Iterator[tuple[str, Fact]]:
    """Every fact of every catalogue, with its address."""
    for name in CARDS:
        card = accelerator(name)
        yield f"{name}.memory", card.memory
        yield f"{name}.framebuffer", card.framebuffer
        yield f"{name}.memory_bandwidth", card.memory_bandwidth
        if card.nvlinks:
            yield f"{name}.nvlinks", card.nvlinks
        yield from ((f"{name}.peak.{kind}", fact) for kind, fact in card.peak.items())
    yield from ((f"{name}.parameters", fact) for name in catalogue.names(model_folder()) if (fact := published(name).parameters))
    yield from ((f"overheads.{name}", fact) for name, fact in overheads.facts().items())
    yield from ((f"efficiency.{name}", fact) for name, fact in efficiencies().items())


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


@pytest.mark.parametrize("row", price_list(), ids=lambda row: f"{row.provider} {row.instance} {row.accelerator}")
def test_a_price_can_be_checked(row) -> None:  # type: ignore[no-untyped-def]
    assert row.accelerator in CARDS
    assert Decimal("0.05") < row.usd_per_gpu_hour < Decimal(25)
    assert row.gpus >= 1
    assert row.source
    assert row.region
    assert row.as_of >= OLDEST


def test_a_card_without_a_price_costs_an_unknown_amount() -> None:
    free = [name for name in CARDS if not prices_of(name)]
    assert free, "the case needs a card that nobody rents"
    job = {"model": "gpt2", "hardware": {"gpu": free[0]}, "training": {"tokens": "1B", "precision": "32-true"}}
    found = estimate(job).cost
    assert found is not None
    assert found.gpu_hours
    assert found.total is None
    assert found.price_source == "no price known"


def test_money_is_hours_times_price() -> None:
    known = cost(10.0, 8.0, 16.0, "h100")
    best, dearest = prices_of("h100")[0], prices_of("h100")[-1]
    assert known.total is not None
    assert known.range_total is not None
    assert Decimal(known.total) == round(10 * best.usd_per_gpu_hour, 2)
    assert Decimal(known.range_total[0]) == round(8 * best.usd_per_gpu_hour, 2)
    assert Decimal(known.range_total[1]) == round(16 * dearest.usd_per_gpu_hour, 2)
    assert best.kind == dearest.kind == "on-demand"


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
