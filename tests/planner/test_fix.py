"""Fixes of files: what is proposed, that it fits, and that nothing else of the file changes."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import app
from estimator import InvalidJob, estimate, fix_file, read_file
from estimator.cli.main import main
from estimator.exchange import READ
from estimator.exchange.configuration import FOLDER, framework
from estimator.exchange.edits import SettingsText
from estimator.exchange.patch import original, replace, unified
from estimator.planner.answers import Fixes
from estimator.planner.check import check_files
from estimator.planner.fix import fix
from estimator.planner.moves import SERVING, TRAINING, numbers
from tests.jobs import TESTS, content

CASES: list[dict[str, Any]] = content(TESTS / "cases" / "fixes.yaml")["cases"]
KEYS = {"name", "text", "hardware", "model", "first", "lines", "same", "problem"}
FIXED = [case for case in CASES if "first" in case]
AXOLOTL, HARDWARE = CASES[0]["text"], CASES[0]["hardware"]


def _ids(case: dict[str, Any]) -> str:
    return str(case["name"])


@cache
def _fixed(text: str, hardware: str, model: str | None) -> Fixes:
    return fix(text.encode(), hardware, model)


@pytest.mark.parametrize("case", CASES, ids=_ids)
def test_what_makes_a_file_fit(case: dict[str, Any]) -> None:
    assert set(case) <= KEYS
    found = _fixed(case["text"], case["hardware"], case.get("model"))
    assert found.fits is False
    if "problem" in case:
        assert found.fixes == []
        assert case["problem"] in found.problem
        return
    first = found.fixes[0]
    edits = [edit for change in first.changes for edit in change.edits]
    assert {edit.key: edit.after for edit in edits} == case["first"]
    assert {edit.key: edit.line for edit in edits if edit.line} == case["lines"]
    assert first.same_result is case["same"]


@pytest.mark.slow
@pytest.mark.parametrize("case", FIXED, ids=_ids)
def test_every_fix_fits_and_changes_nothing_else(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each patch applies; the file that it makes fits, needs what was said, and differs in the lines of the edits alone."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "given"
    found = _fixed(case["text"], case["hardware"], case.get("model"))
    for one in found.fixes:
        path.write_text(case["text"], encoding="utf-8")
        tool = ["patch", "-p0", "-s"] if shutil.which("patch") else ["git", "apply", "-p0", "--unidiff-zero", "-"]
        subprocess.run(
            tool, input=one.patch.replace("--- file", "--- given").replace("+++ file", "+++ given"), text=True, check=True
        )
        answer = estimate(read_file(path, case["hardware"], case.get("model")).job)
        assert answer.fits is True
        assert answer.memory.total_bytes == one.total_bytes
        assert sum(change.saved_bytes for change in one.changes) == found.total_bytes - one.total_bytes
        before, after = case["text"].splitlines(), path.read_text(encoding="utf-8").splitlines()
        edits = sum(len(change.edits) for change in one.changes)
        assert len({line.rstrip(",") for line in after} - {line.rstrip(",") for line in before}) <= edits


def test_writing_keeps_line_ends_and_mode_and_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + AXOLOTL.replace("\n", "\r\n").encode())
    path.chmod(0o640)
    found = fix_file(path, HARDWARE, write=True)
    after = path.read_bytes()
    assert after.startswith(b"\xef\xbb\xbf# kept\r\n")
    assert after.count(b"\r\n") == after.count(b"\n") == AXOLOTL.count("\n")
    assert b"micro_batch_size: 2 # rows\r\n" in after
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["train.yaml"]
    again = fix_file(path, HARDWARE)
    assert (again.fits, again.fixes, again.problem) == (True, [], "")
    assert again.total_bytes == found.fixes[0].total_bytes
    with pytest.raises(InvalidJob, match="in the meantime"):
        replace(path, b"other", b"new")
    assert path.read_bytes() == after
    with pytest.raises(InvalidJob, match="several kinds"):
        original(b"a: 1\r\nb: 2\n", "file")


def test_a_patch_says_where_a_last_line_has_no_end() -> None:
    assert unified("a b", "x: 1\ny: 2", "x: 1\ny: 3\n").splitlines()[:2] == ["--- a b\t", "+++ a b\t"]
    assert unified("f", "y: 2", "y: 3").count("\\ No newline at end of file\n") == 2


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        ("a: 1\nb:\n  c: 2 # two\n\n# end\n", "b.d", True, "a: 1\nb:\n  c: 2 # two\n  d: true\n\n# end\n"),
        ("a: 1\n", "b.d", 2, "a: 1\nb:\n  d: 2\n"),
        ("a: 1", "b", "x: y", "a: 1\nb: 'x: y'"),
        ("a:\nb: 1\n", "a", 3, "a: 3\nb: 1\n"),
        ("a: {b: 1}\n", "a.c", 3, "a: {b: 1, c: 3}\n"),
        ("a: {}\n", "a.c", 3, "a: {c: 3}\n"),
        ("x: &n 4\na: *n # same\n", "a", 2, "x: &n 4\na: 2 # same\n"),
        ("é: '😀'\na: 1\n", "a", 2, "é: '😀'\na: 2\n"),
        ('{\n\t"a": 1\n}\n', "b.c", True, '{\n\t"a": 1,\n "b": {"c": true}\n}\n'),
        ("a: |\n  text\n  more\n", "b", 1, "a: |\n  text\n  more\nb: 1\n"),
        ("a:\n- x\n- y\n", "b", 1, "a:\n- x\n- y\nb: 1\n"),
        ("a: [1]\n", "a", 1, None),
        ("a: 1\n", "a.b", 1, None),
    ],
)  # fmt: skip
def test_a_setting_is_changed_where_it_stands(text: str, key: str, value: Any, after: str | None) -> None:
    assert SettingsText(text, framework("axolotl")).changed(key, value) == after


def test_the_doors(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text(AXOLOTL, encoding="utf-8")
    assert main(["fix", "file", "--on", HARDWARE, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == TestClient(app).post("/v1/fix", params={"on": HARDWARE}, content=AXOLOTL).json()
    assert main(["fix", "file", "--on", HARDWARE]) == 0
    text = capsys.readouterr().out
    assert said["fixes"][0]["patch"] in text
    assert "6     micro_batch_size: 4 -> 2" in text
    assert main(["fix", "file", "--on", HARDWARE, "--write"]) == 0
    assert "written" in capsys.readouterr().err
    assert main(["fix", "file", "--on", HARDWARE]) == 0
    assert "it fits as it is" in capsys.readouterr().out
    assert main(["fix", "file"]) == 0
    assert "--on" in capsys.readouterr().out
    assert main(["fix", "file", "--on", "1GB", "--check"]) == 1


def test_what_is_not_edited(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("axolotl train train.yaml\n", encoding="utf-8")
    (tmp_path / "train.yaml").write_text(AXOLOTL, encoding="utf-8")
    found = fix_file(tmp_path / "run.sh", HARDWARE)
    assert found.fits is False
    assert "train.yaml: fix that file" in found.problem
    (tmp_path / "train.py").write_text("from trl import SFTTrainer\nSFTTrainer('llama-3.2-1b').train()\n", encoding="utf-8")
    found = fix_file(tmp_path / "train.py", "1GB")
    assert (found.fits, found.fixes) == (False, [])
    assert "a script in Python" in found.problem
    checked = check_files([tmp_path / "train.py"], "1GB")
    assert (checked.files[0].verdict, checked.exit_code) == ("does not fit", 1)


def test_edits_are_of_fields_that_are_tried() -> None:
    """Each field that a framework's data has is one of the planner's, or what makes up for one."""
    tried = {one.field for one in (*TRAINING, *SERVING)} | {"training.gradient_accumulation_steps", "serving.n_cpu_moe"}
    for path in FOLDER.glob("*.yaml"):
        if path.stem not in ("known", "shared") and path.stem.replace("_", "-") in {one.replace(".", "-") for one in READ}:
            assert set(framework(path.stem).edits) <= tried, path.name


def test_numbers_are_nearest_first() -> None:
    assert numbers("rows", 12, 1) == [6, 4, 3, 2, 1]
    assert numbers("more", 1, 4) == [2, 4]
    tokens = numbers("tokens", 4096, 1)
    assert (tokens[0], tokens[-1]) == (3968, 1024)
    assert numbers("tokens", 1, 1) == []
