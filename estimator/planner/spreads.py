"""The ways of spreading a job over some hardware, and which of them is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

from estimator.contract.answer.part import IN_RAM
from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import Hardware
from estimator.facts import catalogue
from estimator.families import count
from estimator.families.other import INSTALL, OtherSpec
from estimator.hardware.capacity import capacity
from estimator.parallel.topology import tensor_degrees
from estimator.pipeline.judged import Judged, fits, judged
from estimator.planner.ways import Way
from estimator.serving.llamacpp.devices import MOST_DEVICES
from estimator.simulation.counting import can_count, counted_parameters
from estimator.specs.published import model_folder
from estimator.specs.resolve import Model

PLAIN = {"F32", "F16", "BF16", "F64"}
"""Types of files that hold a number of the model in each element."""


@dataclass(frozen=True)
class Question:
    """A model, as it was named and as it was found."""

    model: str | dict[str, Any]
    found: Model
    allow_files: bool

    @cached_property
    def parameters(self) -> int | None:
        """Parameters of the model; None of one of no family here that neither its files nor torch count."""
        spec, file = self.found.spec, self.found.checkpoint
        if not isinstance(spec, OtherSpec):
            return count(spec)
        if (listed := self.found.parameters) is not None:
            return listed
        try:
            return counted_parameters(spec)
        except NotModelled:
            return file.parameters if file is not None and {*(file.bytes_by_dtype or ["?"])} <= PLAIN else None

    @property
    def counted(self) -> list[str]:
        """What to say of a model that no family here describes."""
        spec = self.found.spec
        if not isinstance(spec, OtherSpec):
            return []
        text = f"{self.found.name}-text"
        alone = [f"its language model alone: {text}"] if catalogue.has(model_folder(), text) else []
        if can_count() and spec.countable:
            return [f"{spec.refusal}: what is said of its training is counted by torch, not derived", *alone]
        return [f"{spec.refusal}: {INSTALL} lets torch count what training it takes", *alone]

    def ask(self, job: dict[str, Any], reserves: bool = True) -> Judged:
        """What a job of the model takes; `reserves` False: without what the caching allocator holds beyond the tensors."""
        return judged({"model": self.model, **job}, self.allow_files, reserves)

    def fits(self, job: dict[str, Any], roomy: float = 0.0) -> bool:
        """Whether it fits; not, where it is refused. `roomy`: what leaves this share of the card is said to fit, sooner."""
        try:
            return bool(fits({"model": self.model, **job}, self.allow_files, roomy))
        except (InvalidJob, NotModelled):
            return False

    def least_bytes(self, way: Way, gpus: int) -> int:
        """Bytes per GPU that no way of sharing goes below: of weights, and of AdamW's moments where all of them are trained."""
        return int((self.parameters or 0) * way.bytes_per_parameter / gpus)


@dataclass(frozen=True, slots=True)
class Tried:
    """One way of spreading, and what it takes."""

    spread: str
    judged: Judged


@dataclass(frozen=True, slots=True)
class Found:
    """The spread that is taken, and all that were tried up to it."""

    best: Tried
    all: list[Tried]


def tried(question: Question, way: Way, hardware: Hardware) -> Found | None:
    """The first spread that fits, else the first of which fragmentation decides, else the one that takes least; None if there is
    none. Raises `NotModelled` where none of them can be answered, with the reason of the first."""
    every: list[Tried] = []
    refused: NotModelled | None = None
    for spread, job in spreads(question, way, hardware):
        try:
            every.append(Tried(spread, question.ask(job)))
        except InvalidJob as error:
            if len(way.strategies) < 2:
                raise
            refused = refused or NotModelled(error.message, error.where)
            continue
        except NotModelled as error:
            refused = refused or error
            continue
        memory, verdict = every[-1].judged.memory, every[-1].judged.verdict
        if verdict.fits is not False and verdict.verdict != "tight":
            return Found(every[-1], every)
        if way.part == "training" and question.least_bytes(way, hardware.gpus * hardware.nodes) > (memory.capacity_bytes or 0):
            break  # no other way of sharing goes below that
    if not every:
        if refused:
            raise refused
        return None
    tight = next((one for one in every if one.judged.verdict.fits), None)
    return Found(tight or min(every, key=lambda one: one.judged.memory.total_bytes), every)


def spreads(question: Question, way: Way, hardware: Hardware) -> Iterator[tuple[str, dict[str, Any]]]:
    """The job of a way on some hardware, once for each sensible way of spreading it, the simplest first."""
    spec, gpus, nodes = question.found.spec, hardware.gpus, hardware.nodes
    total = gpus * nodes
    if way.part == "serving":
        if way.gguf:
            used = Hardware(gpu=hardware.gpu, memory=hardware.memory, ram=hardware.ram, gpus=min(gpus, MOST_DEVICES))
            one = IN_RAM if hardware.without_gpu else "1 GPU"
            yield f"layers over {used.gpus}" if gpus > 1 else one, {**way.job, "hardware": used}
            return
        degree = max(d for d in tensor_degrees(spec) if d <= gpus)
        used = Hardware(gpu=hardware.gpu, memory=hardware.memory, ram=hardware.ram, gpus=degree)
        yield f"tensor {degree}" if degree > 1 else "1 GPU", {**way.job, "hardware": used, "parallelism": {"tensor": degree}}
        layers = getattr(spec.language_model, "num_hidden_layers", nodes)
        for stages in [*doubled(2, min(nodes, layers) - 1), min(nodes, layers)] if nodes > 1 else ():
            over = Hardware(gpu=hardware.gpu, memory=hardware.memory, ram=hardware.ram, gpus=degree, nodes=stages)
            both = {"tensor": degree, "pipeline": stages}
            yield f"tensor {degree}, pipeline {stages}", {**way.job, "hardware": over, "parallelism": both}
    elif total == 1:
        yield "1 GPU", {**way.job, "hardware": hardware}
    else:
        whole = question.least_bytes(way, 1) > (capacity(hardware).memory_bytes or inf)
        for kind in way.strategies:
            if kind == "ddp" and whole and len(way.strategies) > 1:
                continue  # each GPU holds all weights: it never fits
            job = {**way.job, "hardware": hardware}
            if kind == "tensor" and gpus > 1 and spec.can.tensor:
                beside = {"strategy": "fsdp2", "data": nodes} if nodes > 1 else {"data": 1}
                yield _beside(gpus, nodes), {**job, "parallelism": {"tensor": gpus, **beside}}
            elif kind not in ("tensor", "hsdp") or (kind == "hsdp" and nodes > 1 and gpus > 1):
                yield f"{kind} x{total}", {**job, "parallelism": {"strategy": kind}}


def doubled(first: int, last: int) -> Iterator[int]:
    """A number, twice as many, and so on, to the last."""
    while first <= last:
        yield first
        first *= 2


def _beside(gpus: int, nodes: int) -> str:
    return f"tensor {gpus}" if nodes == 1 else f"tensor {gpus}, fsdp2 x{nodes}"


def unshared(question: Question, way: Way, hardware: Hardware) -> str:
    """Why a served model is on one GPU only though there are, or might be, more; empty where it is spread, or trained."""
    spec = question.found.spec
    if way.part == "training" or way.gguf:
        return ""
    if not spec.cache_layers:
        return f"tensor parallelism of {spec.model_type} models is not modelled yet"
    return ""
