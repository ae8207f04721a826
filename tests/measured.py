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
    return _with_jobs(_read("fms_acceleration")["runs"])


@cache
def fsdp1_runs() -> list[dict[str, Any]]:
    """One record per run on several of them under FSDP1, with its `job`."""
    return _with_jobs(_read("fms_fsdp1")["runs"])


def _with_jobs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = _read("fms_acceleration")
    for run in runs:
        hardware = {**table["hardware"], "gpus": run.get("gpus", 1)}
        job = {"model": table["models"].get(run["model"], run["model"]), "hardware": hardware, "training": run["training"]}
        run["job"] = {**job, "parallelism": run["parallelism"]} if "parallelism" in run else job
    return runs


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))
    return found
