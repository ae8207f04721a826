"""Price lists made anew by gpuhunt, of a stub of it and of the library itself."""

from __future__ import annotations

import sys
import zipfile
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from estimator.cli.main import main
from estimator.pricing import prices, refresh


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
