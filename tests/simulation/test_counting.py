"""Models of no family here where torch is not installed, or is not asked: what is said, and what is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from estimator import estimate, fit
from estimator.cli.main import main
from estimator.contract.errors import NotModelled, UnknownArchitecture
from estimator.simulation import counting, shelf
from estimator.views.inspection import inspect_model
from tests.weight_files import safetensors_bytes

CONFIG: dict[str, Any] = {
    "model_type": "zamba",
    "architectures": ["ZambaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 256,
}


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(counting, "find_spec", lambda name: None)
    monkeypatch.setenv(shelf.VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config.json of no family beside weights of 4 GiB."""
    made = tmp_path / "our-model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    entries = {"w": {"dtype": "BF16", "shape": [2**31], "data_offsets": [0, 2**32]}}
    with open(made / "model.safetensors", "wb") as file:
        file.write(safetensors_bytes(entries, 0))
        file.truncate(file.tell() + 2**32)
    return made


def test_a_job_says_what_to_install() -> None:
    with pytest.raises(UnknownArchitecture, match=r"pip install 'willitfit\[torch\]'"):
        estimate({"model": CONFIG})


def test_a_service_counts_nothing() -> None:
    with pytest.raises(UnknownArchitecture, match="not modelled yet"):
        estimate({"model": CONFIG}, allow_files=False)


SHIPPED = "molmo2-8b"


@pytest.mark.parametrize("allow_files", [True, False])
def test_a_shipped_model_of_no_family_is_answered_as_far_as_its_weights_decide(allow_files: bool) -> None:
    rows = {row.way: row for row in fit(SHIPPED, "16GB", allow_files).rows}
    assert rows["serve bf16"].verdict == rows["LoRA (bf16)"].verdict == "does not fit"
    assert "its weights alone are 16.2 GiB" in rows["serve bf16"].problem
    assert rows["serve fp8"].verdict == rows["QLoRA (nf4)"].verdict == "unknown"
    assert {row.verdict for row in fit(SHIPPED, "24GB", allow_files).rows if row.fits is None} == {"unknown"}


def test_another_model_of_its_sizes_has_its_count() -> None:
    assert fit("paddleocr-vl-1.5", "24GB").parameters == fit("paddleocr-vl", "24GB").parameters == 905_601_648


def test_a_service_runs_torch_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "can_count", lambda: True)
    with pytest.raises(UnknownArchitecture, match="a service runs torch for nobody"):
        estimate({"model": SHIPPED}, allow_files=False)
    assert fit(SHIPPED, "24GB", allow_files=False).parameters == 8_694_602_192


def test_a_shipped_model_of_no_family_is_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "molmo2"]) == 0
    assert "8,694,602,192" in capsys.readouterr().out
    assert main(["models", "show", SHIPPED]) == 0
    text = capsys.readouterr().out
    assert f"{SHIPPED}: 8,694,602,192 parameters, molmo2" in text
    assert "622,854,144 embed tokens" in text


def test_serving_is_not_known() -> None:
    with pytest.raises(NotModelled, match="what serving it takes is not known"):
        estimate({"model": SHIPPED, "task": "serve"})


def test_what_is_unknown_never_looks_like_no(folder: Path) -> None:
    found = fit(str(folder / "config.json"), "24GB")
    assert found.parameters == 2**31
    assert {row.verdict for row in found.rows} == {"unknown", "does not fit"}
    known = [row for row in found.rows if row.fits is not None]
    assert [row.way for row in known] == ["full, mixed"]  # 24 GiB of weights and moments
    assert "weights and AdamW's states alone are" in known[0].problem
    assert any("pip install" in said for said in found.assumptions)


def test_weights_that_are_more_than_the_card_are_certain(folder: Path) -> None:
    rows = {row.way: row for row in fit(str(folder / "config.json"), "2GB").rows}
    assert rows["LoRA (bf16)"].verdict == "does not fit"
    assert "its weights alone are 4.0 GiB" in rows["LoRA (bf16)"].problem
    assert rows["QLoRA (nf4)"].verdict == "unknown"


def test_without_weights_nothing_is_certain(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = fit(str(tmp_path / "config.json"), "1GB")
    assert found.parameters is None
    assert {row.fits for row in found.rows} == {None}


def test_a_model_is_shown_with_what_its_files_hold(folder: Path) -> None:
    card = inspect_model(str(folder / "config.json"))
    assert card.counts is None
    assert card.stored is not None
    assert card.stored.numbers == 2**31
    assert any("no family here has 'zamba'" in said for said in card.assumptions)


def test_a_model_is_added_and_asked_about(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WILLITFIT_SPECS", raising=False)
    assert main(["models", "add", str(folder), "--name", "ours"]) == 0
    written = tmp_path / "config" / "willitfit" / "specs" / "ours.yaml"
    assert str(written) in capsys.readouterr().out
    assert main(["ours", "--on", "24GB"]) == 0
    assert "ours on 24GB: an unknown number of parameters" in capsys.readouterr().out
    assert main(["models", "ours"]) == 0
    assert "zamba" in capsys.readouterr().out
    assert main(["models", "add", str(folder), "--name", "ours"]) == 2
    assert "there is one already" in capsys.readouterr().err
    with pytest.raises(NotModelled):
        estimate({"model": "ours"})


def test_an_added_model_is_found_by_what_it_is_called(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that were looked up before it was there are read anew."""
    (tmp_path / "specs").mkdir()
    monkeypatch.setenv("WILLITFIT_SPECS", str(tmp_path / "specs"))
    assert main(["ours 7b", "--on", "24GB"]) == 3
    assert main(["models", "add", str(folder), "--name", "ours-7b-chat"]) == 0
    assert main(["ours 7b", "--on", "24GB"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["models", "add", "llama-2-7b"], "known already"),
        (["models", "add", "nothing/config.json"], "there is no such file"),
        (["models", "llama", "--name", "x"], "--name is of `models add`"),
    ],
)
def test_what_cannot_be_added_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_what_is_kept_is_bounded_and_survives_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MOST_FILES", 2)
    where = shelf.folder()
    assert where is not None
    for i, key in enumerate("abc"):
        shelf.write(key, {"value": key})
        os.utime(where / f"{key}.json.z", (i, i))
    shelf.write("d", [1])
    assert [shelf.read(key) for key in "abcd"] == [None, None, {"value": "c"}, [1]]
    (where / "d.json.z").write_bytes(b"no zlib")
    assert shelf.read("d") is None


def test_nothing_is_kept_where_the_variable_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shelf.VARIABLE, "")
    shelf.write("a", 1)
    assert shelf.folder() is None
    assert shelf.read("a") is None
