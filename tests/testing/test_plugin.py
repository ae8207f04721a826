"""pytest's plugin, in a pytest of its own."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from estimator.contract.errors import Unreadable
from estimator.testing import DoesNotFit, NotKnown, assert_fits
from tests.jobs import ROOT

pytest_plugins = ["pytester"]
SMALL = "model: gpt2\nhardware: {gpu: rtx-4090}\ntask: serve\n"
LARGE = "model: llama-3.2-1b\nhardware: {gpu: rtx-4090}\ntraining: {micro_batch_size: 8}\n"


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "deep" / "large.yaml").write_text(LARGE)
    (tmp_path / "unsaid.yaml").write_text("model: gpt2\n")
    (tmp_path / "other.yaml").write_text("some: thing\n")
    return tmp_path


def test_files_that_fit_pass_and_are_told(configs: Path) -> None:
    found = assert_fits(configs / "small.yaml", configs / "other.yaml")
    assert [file.verdict for file in found.files] == ["skipped", "fits"]
    assert assert_fits(str(configs / "unsaid.yaml"), on="t4").fits


def test_what_does_not_fit_says_why_and_what_would(configs: Path) -> None:
    with pytest.raises(DoesNotFit) as refused:
        assert_fits(configs / "**" / "*.yaml")
    said = str(refused.value)
    assert "large.yaml:" in said
    assert "more than the 23.6 GiB that one GPU offers" in said
    assert "fits with " in said
    assert "small.yaml" not in said


def test_an_unknown_is_neither_a_yes_nor_a_no(configs: Path) -> None:
    with pytest.raises(NotKnown, match="on which hardware") as refused:
        assert_fits(configs / "unsaid.yaml", configs / "small.yaml")
    assert not isinstance(refused.value, DoesNotFit)
    assert assert_fits(configs / "unsaid.yaml", configs / "small.yaml", unknown=True).fits is None


@pytest.mark.parametrize("patterns", [[], ["none/*.yaml"], ["other.yaml"]])
def test_an_assertion_about_nothing_is_refused(patterns: list[str], configs: Path) -> None:
    with pytest.raises(Unreadable, match="no file of a job"):
        assert_fits(*(configs / one for one in patterns))


def test_pytest_finds_it_and_shows_the_message_alone(pytester: pytest.Pytester) -> None:
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
    assert hasattr(import_module(entry["willitfit"]), "assert_fits")
    pytester.makefile(".yaml", small=SMALL, large=LARGE)
    pytester.makepyfile(
        """
        def test_small(assert_fits):
            assert assert_fits("small.yaml").fits

        def test_elsewhere(assert_fits, monkeypatch, tmp_path):
            monkeypatch.chdir(tmp_path)
            assert assert_fits("small.yaml").fits

        def test_all(assert_fits):
            assert_fits("*.yaml", on="rtx-4090")
        """
    )
    found = pytester.runpytest("-p", "no:willitfit", "-p", entry["willitfit"])  # by its module, installed or not
    found.assert_outcomes(passed=2, failed=1)
    found.stdout.fnmatch_lines(["E *DoesNotFit: does not fit on rtx-4090:", "E *large.yaml:*: does not fit: *"])
    assert "def assert_fits(" not in found.stdout.str()
