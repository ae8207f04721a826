"""Price lists of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from estimator.pipeline.remembered import answers
from estimator.pricing import prices
from tests.jobs import table

TABLE = table("prices")


@pytest.fixture(autouse=True)
def _nobodys_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list of whoever runs the tests counts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(prices.VARIABLE, raising=False)


@pytest.fixture
def the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table's list instead of the shipped one."""
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump({"prices": TABLE["list"]}), encoding="utf-8")
    monkeypatch.setattr(prices, "FILE", path)
    answers.clear()
    yield
    answers.clear()
