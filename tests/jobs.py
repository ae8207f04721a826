"""Cases as jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from estimator import Answer, Job
from estimator.specs.resolve import published

CASES = Path(__file__).parent / "cases"
COUNTS = ("resident", "forward_end", "forward", "backward", "optimizer_step")


def cases(name: str) -> list[dict[str, Any]]:
    """A table of cases."""
    found = yaml.safe_load((CASES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert found
    return list(found)


def job_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """The job of a case: its model with as many layers as the case says."""
    job = {key: value for key, value in case.items() if key in Job.model_fields}
    if "layers" in case:
        spec = published(case["model"]).architecture
        job["model"] = {**spec.model_dump(), "num_hidden_layers": case["layers"]}
    return job


def counts(answer: Answer) -> dict[str, int]:
    """The moments of a training step that torch can be asked about."""
    memory = answer.memory
    return {"resident": memory.resident_bytes, "forward_end": memory.forward_end_bytes, **memory.phases}
