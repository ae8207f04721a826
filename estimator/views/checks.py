"""Checked files in the forms of those who run checks: GitHub, GitLab, code scanning (SARIF), a Markdown table, a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from estimator.contract.units import gib
from estimator.planner.check import Checked, CheckedFile

LEVELS = {"does not fit": "error", "unknown": "warning", "refused": "warning"}
"""Of what is reported; the others are as they should be."""
SEVERITIES = {"error": "major", "warning": "info"}
MARKER = "<!-- willitfit -->"
"""What a comment begins with by which it is found again, to be replaced."""
RULES = {
    "does-not-fit": "The job needs more memory than its hardware has.",
    "unknown": "Whether the job fits cannot be said: no hardware is named.",
    "refused": "The file cannot be read as a job, or says what is not modelled.",
}
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def text(found: Checked) -> str:
    """A line for each file, and one for what would make it fit."""
    lines = []
    for file in found.files:
        lines.append(f"{file.path}:{file.line}: {file.verdict}: {file.reason}")
        if file.would_fit_with:
            lines.append(f"  fits with {file.would_fit_with}")
    return "".join(f"{line}\n" for line in lines) or "no files were given\n"


def github(found: Checked) -> str:
    """Workflow commands, which GitHub shows beside the line."""
    lines = []
    for file in found.files:
        if level := LEVELS.get(file.verdict):
            place = f"file={_property(file.path)},line={file.line},title={_property('willitfit: ' + file.verdict)}"
            lines.append(f"::{level} {place}::{_data(_message(file))}\n")
    return "".join(lines)


def gitlab(found: Checked) -> str:
    """A Code Quality report."""
    issues = [
        {
            "description": _message(file),
            "check_name": f"willitfit-{_rule(file)}",
            "fingerprint": sha256(f"{file.path}\n{file.verdict}".encode()).hexdigest(),
            "severity": SEVERITIES[LEVELS[file.verdict]],
            "location": {"path": file.path, "lines": {"begin": file.line}},
        }
        for file in _reported(found)
    ]
    return json.dumps(issues, indent=2, ensure_ascii=False) + "\n"


def sarif(found: Checked) -> str:
    """SARIF 2.1.0, which code scanning takes."""
    rules = [{"id": name, "shortDescription": {"text": said}} for name, said in RULES.items()]
    results: list[dict[str, Any]] = [
        {
            "ruleId": _rule(file),
            "level": LEVELS[file.verdict],
            "message": {"text": _message(file)},
            "locations": [
                {"physicalLocation": {"artifactLocation": {"uri": file.path}, "region": {"startLine": file.line}}},
            ],
        }
        for file in _reported(found)
    ]
    driver = {"name": "willitfit", "version": found.versions.software, "rules": rules}
    report = {"$schema": SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"


def markdown(found: Checked) -> str:
    """A table for a comment or a job's summary; one that is posted again is found by its first line."""
    lines = [MARKER, "| file | | per GPU | of | would fit with |", "|---|---|---|---|---|"]
    for file in found.files:
        needed, offered = ("" if size is None else gib(size) for size in (file.total_bytes, file.capacity_bytes))
        said = f": {file.reason}" if file.verdict in ("unknown", "refused") else ""
        cells = (
            f"`{file.path}`",
            file.verdict + said,
            needed,
            offered,
            f"`{file.would_fit_with}`" if file.would_fit_with else "",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells) + " |")
    versions = found.versions
    return "\n".join([*lines, "", f"willitfit {versions.software}, data of {versions.data}", ""])


FORMS: dict[str, Callable[[Checked], str]] = {
    "text": text,
    "json": Checked.to_json,
    "github": github,
    "gitlab": gitlab,
    "sarif": sarif,
    "markdown": markdown,
}


def _reported(found: Checked) -> list[CheckedFile]:
    return [file for file in found.files if file.verdict in LEVELS]


def _message(file: CheckedFile) -> str:
    return file.reason + (f"; it fits with {file.would_fit_with}" if file.would_fit_with else "")


def _rule(file: CheckedFile) -> str:
    return file.verdict.replace(" ", "-")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
