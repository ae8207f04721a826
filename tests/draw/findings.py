"""Findings are kept as cases, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.draw.outcome import Outcome, outcome
from tests.jobs import content

HEAD = (
    "# Jobs that were drawn at random (python -m tests.draw), found to differ from their judge or to break, and mended since:\n"
    "# each with what the judge counts, or what refuses it (python -m tests.draw --judge FILE writes both anew).\n"
)


def kept(file: Path) -> list[dict[str, Any]]:
    """The cases of a file."""
    return content(file) or [] if file.exists() else []


def keep(file: Path, seed: str, job: dict[str, Any], found: Outcome) -> None:
    """Add a finding with what the judge counted, where it counted, unless the same job is there."""
    known = kept(file)
    if all(case["job"] != job for case in known):
        case = {"name": f"{seed}: {found.why}", "job": job, "detail": found.detail, "counted": found.counted}
        _write(file, [*known, case])


def judge(file: Path) -> None:
    """Ask the judge about every case anew; a case that is mended loses what was said of it."""
    made = []
    for case in kept(file):
        found = outcome(case["job"])
        said: dict[str, Any] = {"counted": found.counted}
        if found.kind == "refused":
            said = {"refused": found.why}
        elif found.kind != "equal":
            said |= {"detail": found.detail or found.why}
        made.append({"name": case["name"], "job": case["job"], **said})
    _write(file, made)


def _write(file: Path, found: list[dict[str, Any]]) -> None:
    file.write_text(HEAD + yaml.safe_dump(found, sort_keys=False, width=136, default_flow_style=None), encoding="utf-8")
