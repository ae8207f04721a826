"""What a watched training writes down: a line of JSON, which `explain` reads and which can be kept as a case."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from estimator.contract.answer import AnswerPart
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.measured.runs import FORMAT
from estimator.watching.differences import Difference

PACKAGES = ("torch", "transformers", "peft", "trl", "accelerate", "lightning", "bitsandbytes")
"""Those whose versions bear on memory."""


class RunRecord(AnswerPart):
    """A training that was watched. Bytes are of one GPU, that of the process which wrote it; null where nothing was measured."""

    format: Literal["willitfit run 1"] = FORMAT
    name: str
    job: dict[str, Any]
    """With every default filled in."""
    predicted_allocated_bytes: int
    predicted_reserved_bytes: int | None
    predicted_total_bytes: int
    peak_allocated_bytes: int | None
    """`torch.cuda.max_memory_allocated` from the first step to the last."""
    peak_reserved_bytes: int | None
    used_bytes: int | None = None
    """What of the GPU all processes use at the end, as the driver says (`torch.cuda.mem_get_info`)."""
    step_seconds: float | None = None
    """Median of the seconds between two steps of the optimizer, from the second on."""
    steps: int
    """Steps of the optimizer that were watched."""
    longest_batch: tuple[int, int] | None
    """Sequences and tokens of the largest batch that the model was given."""
    out_of_memory: bool
    differences: list[Difference]
    """Where the code is not the job; a record that has some is a case of another job."""
    device: str | None
    as_of: str
    versions: dict[str, str]


def versions() -> dict[str, str]:
    """Of this package, of Python, and of the packages that are installed."""
    found = {"willitfit": SOFTWARE_VERSION, "data": DATA_VERSION, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def now() -> str:
    """The time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def append(record: RunRecord, path: Path) -> None:
    """Write a record at the end of a file: one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record.model_dump(mode="json"), ensure_ascii=False) + "\n")
