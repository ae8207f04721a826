"""What is given way in so that a file's job can be answered at all: the table of concessions.yaml, tried only where `estimate`
refuses.

Better an answer that says what it leaves out than none: each concession is named, and one is no longer made as soon as the
refusal is gone.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import Contradiction, NotModelled, WillItFitError
from estimator.contract.reading import load_yaml
from estimator.contract.units import gib
from estimator.contract.validation import validated
from estimator.exchange.found import Found, LeftOut, field_of, with_field
from estimator.exchange.roles import engine_held, has_experts, parameters_of
from estimator.exchange.spread import SHARDED
from estimator.exchange.trainer import OF_LANGUAGE, anywhere
from estimator.families import count
from estimator.families.parts import MultimodalSpec
from estimator.pipeline.judged import judged
from estimator.specs.resolve import resolve

FILE = Path(__file__).with_name("concessions.yaml")
SPREAD, EXPERTS, TARGETS = "parallelism.strategy", "training.quantized_experts", "training.adapter.targets"
GENERATION = "training.objective.generation"
MOST = 12
"""Concessions in one job."""


class Concession(BaseModel):
    """A refusal, what of the job may have caused it, and what is taken instead."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    refused: str | tuple[str, ...]
    """How the field begins that the refusal is about, or several of which it is one."""
    given: dict[str, Any]
    """Fields that the job must have, with these values, with one of a list of them, or with any (`*`)."""
    instead: dict[str, Any]
    """What they become; null takes a field away."""
    times: dict[str, int] = {}
    """Numbers that become as many times as large: sequences of which a step has several."""
    second: int | None = None
    """Bytes for each parameter of a second model that lies beside it, sharded where the first is."""
    experts: bool = False
    """Whether it is made of mixtures of experts alone."""
    why: str


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    concessions: list[Concession]


@cache
def table() -> list[Concession]:
    """The concessions, in the order in which they are tried."""
    return validated(_Table, load_yaml(FILE), str(FILE)).concessions


def accepted(found: Found, allow_files: bool) -> Found:
    """What was found, as a job that `estimate` takes where one can be had; what it then refuses still, it says itself."""
    job, left = found.job, list(found.left_out)
    for _ in range(MOST):
        try:
            judged(job, allow_files, reserves=False)
        except (NotModelled, Contradiction) as error:
            if (
                error.where in ("model", SPREAD, EXPERTS, TARGETS)
                and (alone := _language_model(found.job, allow_files, error.where)) is not None
            ):
                job, said = (
                    alone  # with all that was asked: what is given way in for the whole model may be modelled for this part
                )
                left = [*found.left_out, said]
                continue
            one = next((one for one in table() if _about(one, error.where) and _holds(job, one, allow_files)), None)
            if one is None:
                break
            left.append(LeftOut(key=next(iter(one.given)), why=one.why))
            before, job = job, _given_way(job, one, allow_files)
            if (share := _awake(before)) and not _awake(job):
                job, why = engine_held(job, share)
                left.append(LeftOut(key=GENERATION, why=why))
        except WillItFitError:
            break
        else:
            break
    return found.model_copy(update={"job": job, "left_out": left})


def _language_model(job: dict[str, Any], allow_files: bool, where: str) -> tuple[dict[str, Any], LeftOut] | None:
    """The job with the language model alone, of a model that sees and whose forward pass is not modelled, at all or over so many
    GPUs; the tower's frozen weights are memory that others hold. None for any other model."""
    try:
        spec = resolve(job["model"], allow_files).spec
    except WillItFitError:
        return None
    if not isinstance(spec, MultimodalSpec) or (where == "model") == spec.forward_modelled or not spec.alone.runs:
        return None
    if where == SPREAD and field_of(job, "training.images") is not None:
        return None
    hardware = job.get("hardware") or {}
    strategy = str(field_of(job, SPREAD))
    tower = -(-2 * (count(spec) - count(spec.alone)) // (_ranks(job) if strategy.startswith(SHARDED) else 1))
    under = {SPREAD: f" under {strategy}", EXPERTS: " with experts in 4 bits", TARGETS: " with adapters on these layers"}.get(
        where, ""
    )
    why = (
        f"the forward pass of {spec.model_type}{under} is not modelled: the answer is of its language model, on sequences with "
        f"images' tokens among them; {gib(tower)} of weights beside it are taken for frozen, as memory that others hold "
        "(hardware.in_use)"
    )
    inside = spec.alone.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    held = (hardware.get("in_use") or 0) + max(tower, 1)
    if (targets := field_of(job, "training.adapter.targets")) is not None:
        job = with_field(job, "training.adapter.targets", anywhere(targets, OF_LANGUAGE))
    return with_field({**job, "model": inside}, "hardware.in_use", held), LeftOut(key="model", why=why)


def _given_way(job: dict[str, Any], one: Concession, allow_files: bool) -> dict[str, Any]:
    """The job with what is taken instead."""
    for path, value in one.instead.items():
        job = with_field(job, path, value)
    for path, times in one.times.items():
        job = with_field(job, path, times * (field_of(job, path) or 1))
    if one.second and (parameters := parameters_of(job["model"], allow_files)) is not None:
        hardware = job.get("hardware") or {}
        ranks = _ranks(job) if str(field_of(job, SPREAD)).startswith(SHARDED) else 1
        held = (hardware.get("in_use") or 0) - (-parameters * one.second // ranks)
        job = with_field(job, "hardware.in_use", held)
    return job


def _awake(job: dict[str, Any]) -> float:
    """The share of a GPU that the engine which writes answers holds while the model is trained; 0 where it sleeps, or is none."""
    asked = field_of(job, GENERATION) or {}
    return 0.0 if asked.get("engine") != "vllm" or asked.get("sleep") else float(asked.get("gpu_memory_utilization") or 0)


def _ranks(job: dict[str, Any]) -> int:
    hardware = job.get("hardware") or {}
    return (hardware.get("gpus") or 1) * (hardware.get("nodes") or 1)


def _about(one: Concession, where: str) -> bool:
    """Whether a refusal of a field is what a concession is made for."""
    return where.startswith(one.refused)


def _holds(job: dict[str, Any], one: Concession, allow_files: bool) -> bool:
    if one.experts and not has_experts(job["model"], allow_files):
        return False
    for path, wanted in one.given.items():
        part = field_of(job, path)
        if part is None or (wanted != "*" and part not in (wanted if isinstance(wanted, list) else [wanted])):
            return False
    return any(field_of(job, path) != value for path, value in one.instead.items())
