"""What would take less, for a job that does not fit: settings behind the largest parts of its peak, tried, and what else."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from estimator.contract.answer import Memory
from estimator.contract.job import Job
from estimator.contract.notes import Said
from estimator.contract.units import gib
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import DDP, strategy_of
from estimator.pipeline.remedies import PARTS, Remedy, parts, remedies
from estimator.serving.engines import engine_of

TRIALS = 4
"""How many changes are tried at most: each is an estimate of its own."""
WORTH = 0.01
"""Share of what is needed that a change saves at least, to be spoken of."""
ONE_OF = ("training.loss",)
"""Fields whose values come to about the same: the first that is modelled stands for the others."""

_NARROW = "training.optimizer adamw-8bit, whose states take two bytes per parameter"


class Trial(NamedTuple):
    """What a changed job needs, and whether it fits. `least`: the bytes are those without blocks that the allocator keeps
    cached, which are more than the card offers already."""

    total_bytes: int
    fits: bool | None
    least: bool = False
    host: bool = False
    """Whether it is the host that has too little."""


Attempt = Callable[[dict[str, dict[str, Any]]], Trial | None]
"""Tries a change of a job; None: it is refused."""


def advice(job: Job, memory: Memory, spec: ModelSpec, attempt: Attempt) -> list[Said]:
    """First what was tried and helps, with its bytes: what fits, then what saves most. Then a sentence for each of the largest
    parts at the peak."""
    largest = list(parts(memory))[:PARTS]
    about = _of_training if job.task == "train" else _of_serving
    return [
        *_tried(job, memory, spec, attempt),
        *(Said("largest-part", f"{part.replace('_', ' ')}: {about(part, job)}") for part in largest),
    ]


def partly(fitting: Iterable[tuple[str, list[int]]], attempt: Attempt, unasked: str) -> list[Said]:
    """With which value of each setting that leaves a part in the host's memory it fits: the first one that does, by trial. Of a
    setting's values each takes less of the GPU than the one before, and more of the host. `unasked`: what the engine does where
    nobody chooses any."""
    said = []
    for name, values in fitting:
        if found := first_that_fits(values, partial(_serving, attempt, name)):
            value, trial = found
            text = f"serving.{name} {value} would need {gib(trial.total_bytes)}, the rest in the host's memory: it fits"
            said.append(Said("would-fit", text, f"serving.{name}"))
    if said and unasked:
        said.append(Said("placed-unasked", unasked))
    return said


def _serving(attempt: Attempt, name: str, value: int) -> Trial | None:
    return attempt({"serving": {name: value}})


def first_that_fits(values: list[int], attempt: Callable[[int], Trial | None]) -> tuple[int, Trial] | None:
    """The first value with which it fits, of values each of which takes less of the GPU than the one before, and more of the
    host: where the host has too little, those after it do not mend that."""
    trials: dict[int, Trial | None] = {}

    def enough(value: int) -> bool:
        found = trials[value] = attempt(value)
        return found is not None and (bool(found.fits) or found.host)

    at = bisect_left(values, True, key=enough)
    trial = trials.get(values[at]) if at < len(values) else None
    return (values[at], trial) if trial and trial.fits else None


def _tried(job: Job, memory: Memory, spec: ModelSpec, attempt: Attempt) -> list[Said]:
    """What helps; where none of it is enough, the two that save most are tried together."""
    found: list[tuple[Remedy, Trial]] = []
    settled: set[str] = set()
    for remedy in remedies(job, memory, spec):
        if len(found) == TRIALS - 1:
            break
        if remedy.field not in settled and (trial := attempt(remedy.change)):
            found += [(remedy, trial)] if _saves(memory, trial) >= WORTH * memory.total_bytes else []
            settled |= {remedy.field} if trial.fits or remedy.field in ONE_OF else set()
    found.sort(key=lambda one: (not one[1].fits, one[1].total_bytes))
    both = list({remedy.field: remedy for remedy, _ in reversed(found)}.values())[-2:]
    if found and not found[0][1].fits and len(both) == 2:
        together = both[1].beside(both[0])
        if trial := attempt(together.change):
            found.insert(0, (together, trial))
    return [
        Said(
            "would-fit" if trial.fits else "would-save",
            f"{remedy.said} would need {'at least ' * trial.least}{gib(trial.total_bytes)}, {gib(_saves(memory, trial))} less: "
            + ("it fits" if trial.fits else "not enough by itself"),
            remedy.field,
        )
        for remedy, trial in found
    ]


def _saves(memory: Memory, trial: Trial) -> int:
    """Bytes that a change saves: of both the cached blocks are counted, or of none."""
    return memory.total_bytes - (memory.overhead.get("cached_blocks", 0) if trial.least else 0) - trial.total_bytes


def _of_training(part: str, job: Job) -> str:
    training, sharded = job.training, strategy_of(job).gathers
    fewer = (
        "fewer or shorter sequences at a time (micro_batch_size, sequence_length; gradient_accumulation_steps makes up for it)"
    )
    more = "more GPUs to share them" if sharded else "parallelism.strategy fsdp2 over more GPUs, to share them"
    if part == "parameters":
        if training.adapter and not training.quantization:
            return f"training.quantization nf4 stores frozen weights in about a quarter of the bytes; or {more}"
        return more
    if part in ("gradients", "optimizer_states"):
        narrower = part == "optimizer_states" and training.optimizer in ("adamw", "adam")
        smaller = _NARROW + "; or " if narrower and not strategy_of(job).optimizers else ""
        return more if training.adapter else f"training.adapter, which trains a small part of the weights; or {smaller}{more}"
    switched = training.objective is None or not training.objective.several
    if part == "activations" and training.activation_checkpointing != "full" and switched:
        return f"training.activation_checkpointing full, which recomputes them; or {fewer}"
    if part == "communication_buffers" and strategy_of(job) is DDP and not job.parallelism.gradient_as_bucket_view:
        return "parallelism.gradient_as_bucket_view, which saves a copy of the gradients"
    return fewer


def _of_serving(part: str, job: Job) -> str:
    return engine_of(job).advice(part, job.serving)
