"""Runs on real GPUs, with their jobs in our own format."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from estimator.units import MIB

DATA = Path(__file__).parent / "data"
CUBLAS_WORKSPACES = 2 * (8 * MIB + 128 * 1024)
"""Allocated through torch's allocator where the record's version allocates them: one for each of two streams
(aten/src/ATen/cuda/CublasHandlePool.cpp). The estimate counts them beside the peak."""


@cache
def a100_runs() -> list[dict[str, Any]]:
    """One record per run on one A100-80GB, with its `job`."""
    table = yaml.safe_load((DATA / "fms_acceleration.yaml").read_text(encoding="utf-8"))
    runs: list[dict[str, Any]] = table["runs"]
    for run in runs:
        model = table["models"].get(run["model"], run["model"])
        run["job"] = {"model": model, "hardware": table["hardware"], "training": run["training"]}
    return runs
