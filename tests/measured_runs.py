"""Runs on real GPUs, with their jobs in our own format."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from estimator import Answer
from estimator.contract.job import read_job
from estimator.contract.units import MIB
from estimator.pipeline.run import played
from estimator.simulation.ranks import ranks
from estimator.simulation.simulation import Simulation, simulate
from estimator.tape.gpu import Gpu
from tests.jobs import content

B200 = Gpu((10, 0), True)
DATA = Path(__file__).parent / "data"
CUBLAS_WORKSPACES = 2 * (8 * MIB + 128 * 1024)
"""Allocated through torch's allocator where the record's version allocates them: one for each of two streams
(aten/src/ATen/cuda/CublasHandlePool.cpp). The estimate counts them beside the peak."""

USUAL_LENGTH = 4096
"""Tokens of a sequence of most of Megatron-LM's runs, which their names leave out."""


@cache
def a100_runs() -> list[dict[str, Any]]:
    """One record per run on one A100-80GB, with its `job`."""
    return _with_jobs(_read("fms_acceleration")["runs"])


@cache
def fsdp1_runs() -> list[dict[str, Any]]:
    """One record per run on several of them under FSDP1, with its `job`."""
    return _with_jobs(_read("fms_fsdp1")["runs"])


def stages(job: dict[str, Any]) -> list[Simulation]:
    """Every pipeline stage of a job, played on a B200."""
    run = played(read_job(job), True)
    places = ranks(run.job, run.model.spec, run.place, every=True)
    return [simulate(run.job, run.model.spec, place, B200) for place in places]


def as_measured(run: dict[str, Any], nbytes: int, answer: Answer) -> int:
    """Predicted bytes as the tables' figures have them: with cuBLAS's workspaces, and without what was allocated between the
    stages that they add up (benchmark.py), as adapters in float32 were that fused kernels keep out of FSDP."""
    training = run["training"]
    between = "gpus" in run and training.get("quantization") and training.get("implementation") == "fast-kernels"
    return nbytes + CUBLAS_WORKSPACES - (4 * answer.parameters.trainable if between else 0)


def _with_jobs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = _read("fms_acceleration")
    for run in runs:
        hardware = {**table["hardware"], "gpus": run.get("gpus", 1)}
        job = {"model": table["models"].get(run["model"], run["model"]), "hardware": hardware, "training": run["training"]}
        run["job"] = {**job, "parallelism": run["parallelism"]} if "parallelism" in run else job
    return runs


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = content(DATA / f"{name}.yaml")
    return found


def megatron_functional() -> dict[str, Any]:
    """What Megatron-LM's functional tests allocate between steps, with fp8 and without."""
    return _read("megatron_functional")


@cache
def megatron_runs() -> list[dict[str, Any]]:
    """One record per way of spreading a model over eight B200, with its `job` and `name`."""
    table = _read("megatron_b200")
    return _as_jobs(table, table)


@cache
def more_megatron_runs() -> list[dict[str, Any]]:
    """The rest of that table, with the largest rank's bytes only."""
    return _as_jobs(_read("megatron_b200_more"), _read("megatron_b200"))


def _as_jobs(more: dict[str, Any], table: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of one table, with what the other says of all."""
    models = table["models"] | more["models"]
    for run in more["runs"]:
        training = {**table["training"], "sequence_length": run["sequence_length"]}
        run["name"] = " ".join([run["model"], *(f"{name} {degree}" for name, degree in run["parallelism"].items())])
        if run["sequence_length"] != USUAL_LENGTH:
            run["name"] += f" of {run['sequence_length']} tokens"
        model, hardware = models[run["model"]], {"gpu": "b200", "gpus": 8}
        run["job"] = {"model": model, "hardware": hardware, "training": training}
        run["job"]["parallelism"] = {"strategy": table["strategy"], **run["parallelism"]}
    return list(more["runs"])


def megatron_steps(run: dict[str, Any]) -> dict[str, int]:
    """A run's steps that were timed, by name: how many micro-batches each has."""
    return {f"{run['name']}, {count} micro-batches": count for count in run["iteration_ms"]}


@cache
def serving_runs() -> list[dict[str, Any]]:
    """Inference engines under load, one record per run: of dense models, then of mixtures."""
    return [*_read("serving_speeds")["runs"], *mixture_runs()]


@cache
def mixture_runs() -> list[dict[str, Any]]:
    """Those of mixtures of experts."""
    return list(_read("serving_mixtures")["runs"])
