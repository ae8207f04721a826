"""What can be rented and what it costs: the price lists, the bills, GPUs of one's own, their electricity."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from estimator import InvalidJob, UnknownName, estimate
from estimator.cli.main import main
from estimator.contract.job import Hardware
from estimator.facts.fact import Fact
from estimator.hardware.accelerator import accelerator
from estimator.pricing import prices, spot
from estimator.pricing.cost import priced, suiting
from estimator.pricing.energy import energy, grids, kilowatts
from estimator.pricing.offer import SECONDS, Offer, billed_seconds, run_cost
from estimator.timing.run_length import Hours
from estimator.views import listing
from tests.jobs import table

TABLE = table("prices")
TODAY = date(2026, 11, 22)
SHIPPED = prices.read(prices.FILE)
ROW: dict[str, Any] = TABLE["list"][0]


def shipped(**wanted: str) -> list[Offer]:
    return [offer for offer in SHIPPED if all(getattr(offer, name) == value for name, value in wanted.items())]


def test_every_shipped_price_can_be_checked() -> None:
    wrong = [
        offer
        for offer in SHIPPED
        if not (
            Decimal("0.05") <= offer.price_per_gpu_hour <= Decimal(30)
            and offer.currency == "USD"
            and len(offer.source) > 15
            and date(2024, 1, 1) <= offer.as_of <= TODAY
            and (offer.gpus in (1, 2, 3, 4, 8, 10, 16))
        )
    ]
    assert not wrong


def test_there_are_enough_prices_of_every_kind() -> None:
    assert len(SHIPPED) >= 200
    assert Counter(offer.kind for offer in SHIPPED).keys() == {"on-demand", "spot", "reserved-1y", "reserved-3y", "marketplace"}
    assert len({offer.provider for offer in SHIPPED}) >= 10
    assert {"aws", "azure", "gcp", "oci", "lambda", "runpod", "coreweave", "nebius"} <= {offer.provider for offer in SHIPPED}
    assert any(not offer.old(TODAY) for offer in shipped(accelerator="h100", kind="on-demand"))


def test_who_commits_or_may_be_interrupted_pays_less() -> None:
    """Where an instance of a region is sold in several ways: three years are cheaper than one, spot than on demand."""
    compared = 0
    for offer in shipped(kind="on-demand"):
        for cheaper in shipped(provider=offer.provider, instance=offer.instance, region=offer.region):
            if cheaper.kind != "on-demand":
                compared += 1
                assert cheaper.price_per_hour < offer.price_per_hour, cheaper.key
    for longer in shipped(kind="reserved-3y"):
        (shorter,) = shipped(provider=longer.provider, instance=longer.instance, region=longer.region, kind="reserved-1y")
        assert longer.price_per_hour < shorter.price_per_hour
    assert compared > 50


@pytest.mark.usefixtures("the_list")
def test_a_card_that_is_in_no_catalogue_takes_nothing_down(capsys: pytest.CaptureFixture[str]) -> None:
    """A price may be known before the accelerator is."""
    assert [offer.instance for offer in prices.search("no-such-card")] == ["future"]
    assert len(suiting(Hardware(), "no-such-card", TODAY)) == 1
    assert main(["prices", "no such"]) == main(["gpus"]) == 0
    assert "no-such-card" in capsys.readouterr().out
    with pytest.raises(UnknownName):
        estimate({"model": "gpt2", "hardware": {"gpu": "no-such-card"}})


@pytest.mark.parametrize("case", TABLE["billed"], ids=str)
def test_what_time_is_billed(case: dict[str, Any]) -> None:
    terms = {key: case[key] for key in ("increment", "minimum_seconds") if key in case}
    offer = Offer.model_validate({**{k: v for k, v in ROW.items() if k != "increment"}, **terms})
    assert abs(Fraction(billed_seconds(offer, case["hours"])) - 3600 * Fraction(case["billed"])) < Fraction(1, 10**20)


@pytest.mark.usefixtures("the_list")
@pytest.mark.parametrize("case", TABLE["costs"], ids=lambda case: case["name"])
def test_costs(case: dict[str, Any]) -> None:
    hardware = Hardware.model_validate(case["hardware"])
    card = accelerator(hardware.gpu) if hardware.gpu else None
    if "refused" in case:
        with pytest.raises(InvalidJob, match=re.escape(case["refused"])):
            priced(hardware, card, Hours(*case["hours"]), TODAY)
        return
    cost, assumed, warned = priced(hardware, card, Hours(*case["hours"]), case.get("today", TODAY))
    assert cost is not None
    assert cost.gpu_hours == case["hours"][0] * hardware.gpus * hardware.nodes
    if "unpriced" in case:
        assert (cost.total, cost.price_source) == (None, case["unpriced"])
        return
    assert (cost.total, list(cost.range_total or ())) == (case["total"], case["range"])
    assert (cost.price_per_gpu_hour, cost.instances, cost.parts) == (case["each"], case.get("instances"), case.get("parts", {}))
    assert cost.price_source.startswith(case["source"])
    assert cost.currency == case.get("currency", "USD")
    assert case.get("assumes", "") in "\n".join(assumed)
    assert bool(assumed) == ("assumes" in case)
    assert case.get("warns", "") in "\n".join(warned)
    assert bool(warned) == ("warns" in case)


def test_owned_and_rented_exclude_each_other() -> None:
    owned = {"purchase_price": 1, "currency": "USD", "lifetime_years": 1, "utilisation": 1, "electricity_price": 1}
    for hardware in ({"owned": owned, "rent": {"kind": "spot"}}, {"owned": {**owned, "utilisation": 1.5}}, {"grid": "xx"}):
        with pytest.raises(InvalidJob, match=r"exclude each other|utilisation|no grid is called 'xx'"):
            estimate({"model": "gpt2", "task": "serve", "hardware": {"gpu": "l4", **hardware}, "serving": {"hours": 1}})


AMOUNTS = st.decimals(min_value="0.01", max_value="1000", places=6)


@given(AMOUNTS, st.integers(1, 10**7), st.integers(1, 4096))
def test_money_is_exact(price: Decimal, seconds: int, instances: int) -> None:
    """Seconds as hours in binary are billed as those seconds, not one more; and no cent is lost in the product."""
    offer = Offer.model_validate({**ROW, "price_per_hour": price, "increment": "second"})
    paid = run_cost(offer, seconds / 3600, instances)
    assert isinstance(paid, Decimal)
    assert abs(Fraction(paid) - instances * Fraction(price) * seconds / 3600) < Fraction(1, 10**12)


@given(AMOUNTS, st.floats(0, 10**5), st.sampled_from([None, "second", "minute", "hour"]), st.integers(0, 7200))
def test_a_bill_is_never_less_than_the_time(price: Decimal, hours: float, increment: str | None, minimum: int) -> None:
    offer = Offer.model_validate({**ROW, "price_per_hour": price, "increment": increment, "minimum_seconds": minimum})
    billed, asked = billed_seconds(offer, hours), Decimal(str(hours)) * 3600
    assert billed >= asked - Decimal("1e-6")
    assert billed >= minimum
    coarsest = Decimal(SECONDS.get(increment or "", 0))
    assert billed <= max(asked + coarsest, Decimal(minimum)) + Decimal("1e-6")


@pytest.mark.parametrize("case", TABLE["refused"], ids=lambda case: case["says"])
def test_a_broken_list_is_refused_row_by_row(
    case: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(case["content"], encoding="utf-8")
    monkeypatch.setenv(prices.VARIABLE, str(path))
    assert main(["prices"]) == 2
    said = capsys.readouterr().err
    assert case["says"] in said
    assert str(path) in said


def test_every_wrong_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"prices": [ROW, {**ROW, "gpus": 0}, {**ROW, "kind": "x"}]}), encoding="utf-8")
    with pytest.raises(InvalidJob) as caught:
        prices.read(path)
    assert re.findall(r"row \d", str(caught.value)) == ["row 2", "row 3"]


def test_an_own_list_adds_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that is named counts most, then the others, then ours; a price is replaced where its key is the same."""
    theirs = shipped(provider="aws", instance="p5.48xlarge", kind="on-demand")[0]
    own = {**json.loads(theirs.model_dump_json(exclude_none=True)), "accelerator": "H100 SXM5", "source": "our contract"}
    for name, price in (("first", "1"), ("second", "2")):
        rows = [{**own, "price_per_hour": price}, {**own, "price_per_hour": price, "region": name}]
        (tmp_path / name).write_text(yaml.safe_dump({"prices": rows}), encoding="utf-8")
    monkeypatch.setenv(prices.VARIABLE, f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    found = {offer.key: offer for offer in prices.offers()}
    assert len(found) == len(SHIPPED) + 2
    assert found[theirs.key].price_per_hour == 1
    assert {found[(*theirs.key[:2], name, "on-demand")].price_per_hour for name in ("first", "second")} == {1, 2}
    assert {offer.accelerator for offer in found.values() if offer.provider == "aws" and offer.price_per_hour < 3} >= {"h100"}
    monkeypatch.setenv(prices.VARIABLE, str(tmp_path / "third"))
    with pytest.raises(InvalidJob, match="which is no file"):
        prices.offers()


def test_the_option_and_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(prices.VARIABLE, "")
    job = tmp_path / "job.yaml"
    job.write_text(
        "{model: gpt2, task: serve, hardware: {gpu: h100, rent: {provider: ours}}, serving: {hours: 2}}", encoding="utf-8"
    )
    own = prices.own_file()
    own.parent.mkdir()
    for path, price in ((own, "5"), (tmp_path / "other.yaml", "7")):
        path.write_text(yaml.safe_dump({"prices": [{**ROW, "provider": "ours", "price_per_hour": price}]}), encoding="utf-8")
    for options, total in (((), "10.00"), (("--prices", str(tmp_path / "other.yaml")), "14.00")):
        assert main(["estimate", str(job), "--json", *options]) == 0
        assert json.loads(capsys.readouterr().out)["cost"]["total"] == total


@pytest.mark.usefixtures("the_list")
def test_a_card_is_listed_with_its_least_price_that_is_not_old() -> None:
    least = {row["name"]: row["usd_per_gpu_hour"] for row in listing.gpus()}
    assert (least["h100"], least["rtx-4090"], least["a100-80gb"], least["rtx-4070"]) == ("1.50", "0.35", "3.00", None)


def test_prices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "AWS", "h100", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == listing.offers("aws h100")
    assert {row["instance"] for row in rows} == {"p5.4xlarge", "p5.48xlarge"}
    assert all(row["source"] and row["as_of"] and row["currency"] == "USD" for row in rows)
    assert main(["prices", "reserved-3y", "gcp"]) == 0
    assert "a3-highgpu-8g" in capsys.readouterr().out
    assert main(["prices", "tpu"]) == 3
    assert main(["prices", "h100", "--provider", "aws"]) == 2


OWNED = {"purchase_price": 1, "currency": "USD", "lifetime_years": 1, "utilisation": 1, "electricity_price": 1, "pue": 1.2}


def test_energy_is_power_times_time() -> None:
    """Eight GPUs of 500 W for 100 h on a site of PUE 1.2: 480 kWh."""
    hardware = Hardware.model_validate({"gpus": 8, "grid": "DE", "owned": {**OWNED, "power_watts": 500}})
    found = energy(hardware, None, 8, Hours(100, 50, 200))
    assert found is not None
    grams = grids()["de"].value
    assert (found.kwh, found.range_kwh) == (480, (240, 960))
    assert found.co2e_kg == pytest.approx(480 * grams / 1000, abs=0.001)
    assert (found.grid, found.grams_per_kwh) == ("Germany, 2024", grams)
    assert "500 W" in found.source
    assert "Ember" in found.source


def test_a_node_draws_more_than_its_gpus_thermal_design_power() -> None:
    """An H100's 700 W are 966 W of its node, and 1.49 kW of an average site; without a power there is no energy."""
    card = accelerator("h100").model_copy(update={"power": Fact(value=700, unit="W", source="a data sheet", as_of=TODAY)})
    power = kilowatts(Hardware(), card)
    assert power is not None
    assert power == (Decimal("0.7700"), Decimal("1.48764"), Decimal("1.670060"))
    found = energy(Hardware(), card, 1, Hours(1000, 1000, 1000))
    assert found is not None
    assert (found.kwh, found.range_kwh) == (1487.64, (770, 1670.06))
    assert energy(Hardware(), card.model_copy(update={"power": None}), 1, Hours(1, 1, 1)) is None
    owned = Hardware.model_validate({"owned": {**OWNED, "purchase_price": 87660, "lifetime_years": 10, "pue": 1}})
    cost = priced(owned, card, Hours(1000, 1000, 1000), TODAY).cost
    assert cost is not None
    assert cost.parts == {"purchase": "1000.00", "electricity": "966.00"}


def test_an_answer_has_its_cost_its_energy_and_their_warnings() -> None:
    job = {"model": "gpt2", "task": "serve", "hardware": {"gpu": "l4"}, "serving": {"hours": 24}}
    late = estimate(job, today=date(2030, 1, 1))
    assert late.cost is not None
    assert late.cost.price_as_of is not None
    age = date(2030, 1, 1) - date.fromisoformat(late.cost.price_as_of)
    assert any(f"{age.days} days old" in warning for warning in late.warnings)
    fresh = estimate(job, today=date.fromisoformat(late.cost.price_as_of))
    assert not any("days old" in warning for warning in fresh.warnings)
    owned = estimate({**job, "hardware": {"gpu": "l4", "owned": {**OWNED, "power_watts": 100}}})
    assert owned.energy is not None
    assert owned.cost is not None
    assert owned.energy.kwh == pytest.approx(24 * 0.1 * 1.2)
    assert owned.cost.price_source == "GPUs of one's own"
    assert any(line.startswith("owned:") for line in owned.assumptions)


def test_bands_of_spot_are_those_of_instances_that_are_sold() -> None:
    assert spot.bands()["unknown"].low == 0
    assert all(band.low <= band.value <= band.high < 1 for band in spot.bands().values())
    sold = [offer for offer in SHIPPED if offer.provider == "aws" and spot.band_of(offer) != spot.UNKNOWN]
    assert len(sold) > 30
    assert {spot.band_of(offer) for offer in sold} == set(spot.bands()) - {spot.UNKNOWN}
