"""What can be rented and what it costs: the price lists, the bills, GPUs of one's own, their electricity."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections import Counter
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
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
from estimator.pricing import prices, refresh, spot
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


@pytest.fixture(autouse=True)
def _nobodys_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list of whoever runs the tests counts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(prices.VARIABLE, raising=False)


@pytest.fixture
def the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's list instead of the shipped one."""
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump({"prices": TABLE["list"]}), encoding="utf-8")
    monkeypatch.setattr(prices, "FILE", path)


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


def item(**changed: Any) -> SimpleNamespace:
    """An item of gpuhunt's catalogue."""
    given = {
        "provider": "aws", "instance_name": "p4d.24xlarge", "location": "us-east-1", "price": 21.957642, "cpu": 96,
        "memory": 1152.0, "gpu_count": 8, "gpu_name": "A100", "gpu_memory": 40.0, "spot": False,
    }  # fmt: skip
    return SimpleNamespace(**given | changed)


ITEMS = [
    item(),
    item(price=22.5),
    item(spot=True, price=9.1),
    item(
        instance_name="a pod", provider="runpod", gpu_name="RTX4090", gpu_memory=24.0, gpu_count=1, price=0.1, cpu=0, memory=0.0
    ),
    item(gpu_name="A100", gpu_memory=80.0, location="us-west-2"),
    item(gpu_name="XPU-9000", gpu_memory=0.0, location="x"),
    item(location="free", price=0.0),
]


def stub(monkeypatch: pytest.MonkeyPatch, items: list[SimpleNamespace] | Exception, load: Exception | None = None) -> None:
    """A gpuhunt whose catalogue holds some items, or fails."""

    class Catalog:
        def __init__(self, auto_reload: bool) -> None:
            self.catalog = {"aws": SimpleNamespace(version="20261120-7")}

        def load(self) -> None:
            if load:
                raise load

        def query(self, **asked: Any) -> list[SimpleNamespace]:
            if isinstance(items, Exception):
                raise items
            return items

    monkeypatch.setitem(sys.modules, "gpuhunt", SimpleNamespace(Catalog=Catalog))
    monkeypatch.setattr(refresh, "_known", lambda: ["aws", "gcp"])


def test_refreshed_prices_are_the_users_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stub(monkeypatch, ITEMS)
    assert main(["prices", "refresh"]) == 0
    out, err = capsys.readouterr()
    assert out == f"4 prices in {prices.own_file()}\n"
    assert "are no accelerators of ours: XPU-9000\n" in err
    assert "nothing came from gcp\n" in err
    found = {offer.key: offer for offer in prices.read(prices.own_file())}
    aws = found["aws", "p4d.24xlarge", "us-east-1", "on-demand"]
    assert (aws.price_per_hour, aws.accelerator, aws.as_of) == (Decimal("21.957642"), "a100-40gb", date(2026, 11, 20))
    assert found["aws", "p4d.24xlarge", "us-west-2", "on-demand"].accelerator == "a100-80gb"
    pod = found["runpod", "a-pod", "us-east-1", "on-demand"]
    assert (pod.price_per_hour, pod.accelerator, pod.as_of, pod.vcpus) == (Decimal("0.1"), "rtx-4090", date.today(), None)
    assert prices.offers()[0] == min(prices.offers(), key=lambda offer: offer.price_per_gpu_hour)
    assert set(found) <= {offer.key for offer in prices.offers()}


def test_an_offer_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stub(monkeypatch, [item(price=1e9)])
    assert main(["prices", "refresh"]) == 2
    assert "p4d.24xlarge of aws: price_per_hour" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("items", "load", "said"),
    [
        (ITEMS, OSError("Network is unreachable"), "could not be loaded (Network is unreachable)"),
        (TimeoutError(), None, "could not be asked (TimeoutError)"),
        (ValueError("Unknown provider: awz"), None, "Unknown provider: awz; gpuhunt knows aws, gcp"),
        (ITEMS[5:], None, "of 2 offers none is of an accelerator that is known; nothing came from gcp"),
    ],
)
def test_where_nothing_comes_back_nothing_is_written(
    items: Any,
    load: Exception | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub(monkeypatch, items, load)
    path = tmp_path / "there.yaml"
    path.write_text("as it was", encoding="utf-8")
    assert main(["prices", "refresh", "--output", str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert path.read_text(encoding="utf-8") == "as it was"
    assert [file.name for file in tmp_path.iterdir()] == ["there.yaml"]


def test_a_place_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(monkeypatch, ITEMS)
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["prices", "refresh", "--output", str(tmp_path / "file" / "prices.yaml")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    assert main(["prices", "refresh", "--output", str(tmp_path / "folder")]) == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


def test_refreshing_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    assert main(["prices", "refresh"]) == 2
    assert "pip install 'willitfit[prices]'" in capsys.readouterr().err


COLUMNS = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,provider_data"
)
"""Of the files that gpuhunt publishes."""


def test_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own catalogue, published in a folder, of one provider; the others are not there."""
    pytest.importorskip("gpuhunt")
    (tmp_path / "aws" / "20261120-7").mkdir(parents=True)
    (tmp_path / "aws" / "version").write_text("20261120-7\n", encoding="utf-8")
    row = "p4d.24xlarge,us-east-1,21.957642,96,1152.0,8,A100,40.0,False,,nvidia,,x86,{}"
    with zipfile.ZipFile(tmp_path / "aws" / "20261120-7" / "catalog.zip", "w") as file:
        file.writestr("aws.csv", f"{COLUMNS}\n{row}\n")
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", tmp_path.as_uri())
    assert main(["prices", "refresh"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("1 prices in ")
    assert "nothing came from azure, " in err
    (only,) = prices.read(prices.own_file())
    assert (only.price_per_hour, only.accelerator, only.as_of) == (Decimal("21.957642"), "a100-40gb", date(2026, 11, 20))
    assert main(["prices", "refresh", "--provider", "gcp"]) == 2
    assert "nothing came from gcp" in capsys.readouterr().err
    assert prices.own_file().is_file()


def test_the_library_itself_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gpuhunt")
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", "http://127.0.0.1:9")
    assert main(["prices", "refresh", "--output", str(tmp_path / "prices.yaml")]) == 2
    err = capsys.readouterr().err
    assert "could not be loaded" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


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
