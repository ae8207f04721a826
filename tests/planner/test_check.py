"""Several files at once: a row for each, an exit code, and the forms of those who run checks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from estimator.cli.main import main
from estimator.cli.options import CHECKS
from estimator.contract.errors import UnknownHardware
from estimator.planner.check import check_files, check_texts
from estimator.views.checks import FORMS, MARKER
from tests.jobs import ROOT, TINY, content

SMALL = json.dumps({"model": TINY, "training": {"sequence_length": 128}})
AXOLOTL = (ROOT / "docs" / "examples" / "axolotl.yaml").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "small.json": SMALL,
        "axolotl.yaml": AXOLOTL,
        "other.yaml": "on: push\njobs: {}\n",
        "misspelt.json": SMALL.replace("sequence_length", "sequnce_length"),
        "broken.yaml": "model: [\n",
        "tsconfig.json": '{"strict": true, // always\n}',
        "chart.yaml": "{{- if .Values.on }}\nreplicas: 2\n{{- end }}\n",
        "compose.yaml": "services: {web: {image: nginx}}\n",
        "pod.yaml": "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: web, image: nginx}]}\n",
        "build.sh": "#!/bin/sh\nmake all\n",
        "a,b: 100%.json": SMALL.replace("128", '"many"'),
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    return tmp_path


@pytest.mark.parametrize(
    ("names", "on", "verdicts", "code"),
    [
        ([], "8GB", [], 0),
        (["small.json"], "8GB", ["fits"], 0),
        (["small.json", "other.yaml"], "8GB", ["fits", "skipped"], 0),
        (["small.json"], None, ["unknown"], 2),
        (["small.json", "misspelt.json"], "8GB", ["fits", "refused"], 2),
        (["broken.yaml"], "8GB", ["refused"], 2),
        (["tsconfig.json", "chart.yaml", "compose.yaml", "pod.yaml", "build.sh"], "8GB", ["skipped"] * 5, 0),
        (["nowhere.yaml"], "8GB", ["refused"], 2),
        (["pipe", "small.json"], "8GB", ["refused", "fits"], 2),
        ([".", "no\0thing"], "8GB", ["refused", "refused"], 2),
        (["axolotl.yaml"], "rtx-4090", ["does not fit"], 1),
        (["axolotl.yaml", "misspelt.json", "small.json"], "rtx-4090", ["does not fit", "refused", "fits"], 1),
    ],
)
def test_each_file_has_a_verdict(folder: Path, names: list[str], on: str | None, verdicts: list[str], code: int) -> None:
    found = check_files(names, on)
    assert [file.verdict for file in found.files] == verdicts
    assert [file.path for file in found.files] == names
    assert found.exit_code == code


def test_what_would_make_it_fit_is_said_where_it_stands(folder: Path) -> None:
    [file] = check_files(["axolotl.yaml"], "rtx-4090").files
    assert "micro_batch_size: 1" in file.would_fit_with
    assert AXOLOTL.splitlines()[file.line - 1].startswith(("micro_batch_size", "gradient_accumulation_steps"))
    assert file.total_bytes is not None
    assert file.capacity_bytes is not None
    assert file.total_bytes > file.capacity_bytes


def test_texts_are_checked_as_their_files_are(folder: Path) -> None:
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file()]
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    for on in (None, "rtx-4090"):
        for text, file in zip(check_texts(texts, on).files, check_files(names, on).files, strict=True):
            assert text.model_copy(update={"reason": text.reason.replace("file:", f"{text.path}:", 1)}) == file
    with pytest.raises(UnknownHardware, match="rtx-9999"):
        check_texts({}, "rtx-9999")


def test_hardware_that_is_none_is_no_file_s_fault(folder: Path) -> None:
    with pytest.raises(UnknownHardware, match="rtx-9999"):
        check_files(["small.json"], "rtx-9999")


def test_a_refusal_names_its_error(folder: Path) -> None:
    [file] = check_files(["misspelt.json"], "8GB").files
    assert file.error == "unknown-key"
    assert "sequence_length" in file.reason


def test_the_forms_are_those_of_the_command_line() -> None:
    assert tuple(FORMS) == CHECKS


NAMES = ["small.json", "axolotl.yaml", "other.yaml", "misspelt.json", "a,b: 100%.json"]


def test_github_shows_it_beside_the_line(folder: Path) -> None:
    lines = FORMS["github"](check_files(NAMES, "rtx-4090")).splitlines()
    assert [re.match(r"::(\w+) file=([^,]+),line=(\d+),title=willitfit%3A ([a-z ]+)::", line)[1] for line in lines] == [  # type: ignore[index]
        "error",
        "warning",
        "warning",
    ]
    assert "file=a%2Cb%3A 100%25.json," in lines[2]


def test_gitlab_and_code_scanning_read_it(folder: Path) -> None:
    found = check_files(NAMES, "rtx-4090")
    issues = json.loads(FORMS["gitlab"](found))
    assert [issue["location"]["path"] for issue in issues] == ["axolotl.yaml", "misspelt.json", "a,b: 100%.json"]
    assert all({"description", "check_name", "fingerprint", "severity", "location"} == issue.keys() for issue in issues)
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    report = json.loads(FORMS["sarif"](found))
    run = report["runs"][0]
    assert report["version"] == "2.1.0"
    assert {result["ruleId"] for result in run["results"]} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] > 1


def test_a_comment_has_a_row_for_each_file(folder: Path) -> None:
    lines = FORMS["markdown"](check_files(NAMES, "rtx-4090")).splitlines()
    assert lines[0] == MARKER
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(NAMES)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)


@pytest.mark.parametrize("form", CHECKS)
def test_the_command_prints_each_form_and_exits_with_what_it_found(
    folder: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert main(["check", "small.json", "axolotl.yaml", "--on", "rtx-4090", "--format", form]) == 1
    assert "axolotl.yaml" in capsys.readouterr().out


def test_what_runs_it_elsewhere_calls_what_there_is() -> None:
    """The hook of pre-commit and GitHub's action."""
    [hook] = content(ROOT / ".pre-commit-hooks.yaml")
    assert hook["entry"] == "willitfit check"
    action = content(ROOT / "action.yml")
    script = "\n".join(step.get("run", "") for step in action["runs"]["steps"])
    assert set(re.findall(r"--format (\w+)", script)) <= set(CHECKS)
    assert set(re.findall(r"inputs\.(\w+)", json.dumps(action["runs"]))) == set(action["inputs"])


def test_a_report_is_told_again_in_every_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *NAMES, "--on", "rtx-4090", "--format", "json"]) == 1
    (folder / "report.json").write_text(capsys.readouterr().out, encoding="utf-8")
    found = check_files(NAMES, "rtx-4090")
    for form in CHECKS:
        assert main(["check", "--report", "report.json", "--format", form]) == 1
        assert capsys.readouterr().out == FORMS[form](found)
    assert main(["check", "--report", "report.json", "small.json"]) == 2
    (folder / "other.json").write_text('{"fits": true}', encoding="utf-8")
    for name in ("other.json", "missing.json", NAMES[0]):
        assert main(["check", "--report", name]) == 2
        assert name in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("files", "code", "checked"), [("*.json axolotl.yaml", 1, 1), ("small.json", 0, 1), ("none/*.yaml", 0, 1)]
)
def test_githubs_action_checks_once_and_tells_twice(folder: Path, files: str, code: int, checked: int) -> None:
    """Its own script, in the environment that a runner gives it."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "willitfit"
    program.write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls\nexec {sys.executable} -m estimator.cli "$@"\n')
    program.chmod(0o755)
    action = content(ROOT / "action.yml")
    script = action["runs"]["steps"][-1]["run"]
    given = {"FILES": files, "HARDWARE": "rtx-4090", "MODEL": "", "RUNNER_TEMP": str(folder / "bin")}
    environment = {**os.environ, **given, "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{folder / 'bin'}:{environment['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == code, found.stderr
    names = sorted({path.name for pattern in files.split() for path in folder.glob(pattern)})
    rows = [line for line in (folder / "summary.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(names)
    assert found.stdout.startswith("::") is bool(code)
    calls = (folder / "calls").read_text().splitlines()
    assert len([call for call in calls if "--report" not in call]) == checked
    assert len(calls) == checked + 2
