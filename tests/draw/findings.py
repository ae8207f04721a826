"""Findings are kept as cases, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.draw.outcome import Outcome


def keep(file: Path, seed: str, job: dict[str, Any], found: Outcome) -> None:
    """Add a finding with what the judge counted, where it counted, unless the same job is there."""
    known = yaml.safe_load(file.read_text(encoding="utf-8")) or [] if file.exists() else []
    if any(case["job"] == job for case in known):
        return
    case = {"name": f"{seed}: {found.why}", "job": job, "detail": found.detail, "counted": found.counted}
    with file.open("a", encoding="utf-8") as out:
        out.write(yaml.safe_dump([case], sort_keys=False, width=140, default_flow_style=None))
