"""The headline question: will this model fit on that hardware, in every usual way of using it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from estimator.answer import Versions
from estimator.errors import NotModelled, WillItFitError
from estimator.estimation import Judged, fits, judged
from estimator.families import count
from estimator.hardware.capacity import capacity
from estimator.hardware.parse import ReadHardware, read_hardware
from estimator.job import Hardware
from estimator.notes import without_bf16, without_cuda
from estimator.parallel.topology import tensor_degrees
from estimator.planner.answers import Fit, FitRow
from estimator.specs.resolve import Model, resolve
from estimator.verdict import offered
from estimator.version import DATA_VERSION, SOFTWARE_VERSION

CONTEXT = 4096
SEQUENCE = 2048
LORA: dict[str, Any] = {"type": "lora", "rank": 16, "targets": "all-linear", "dtype": "bf16"}
MOST_GPUS = 1024


@dataclass(frozen=True, slots=True)
class Way:
    """One usual way of using a model: how it is called, and the part of a job that says it."""

    label: str
    job: dict[str, Any]
    strategies: tuple[str, ...] = ()
    """Data-parallel strategies to try on several GPUs, the simplest first."""


def fit(model: str | dict[str, Any], hardware: str | Hardware, allow_files: bool = True) -> Fit:
    """Every usual way of using a model on some hardware ('2x24GB', 'rtx-4090', '8xH100', '2 nodes of 8xA100-80GB').

    `allow_files` False refuses models named by a path. Raises `UnknownName`, `InvalidJob` and `NotModelled`.
    """
    machine, understood = read_hardware(hardware) if isinstance(hardware, str) else ReadHardware(hardware)
    found = resolve(model, allow_files)
    card = capacity(machine)
    question = _Question(model, found, allow_files)
    context, sequence = lengths(found)
    return Fit(
        model=found.name,
        hardware=" ".join(hardware.split()) if isinstance(hardware, str) else machine.model_dump_json(exclude_none=True),
        parameters=count(found.spec),
        capacity_bytes=card.memory_bytes,
        rows=[_row(question, way, machine) for way in ways(context, sequence)],
        assumptions=[
            *understood,
            *found.assumptions,
            *filter(None, [found.spec.instead]),
            *card.assumptions,
            *without_bf16(card),
            *without_cuda(card),
            *_notes(context, sequence),
        ],
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


@dataclass(frozen=True, slots=True)
class _Question:
    model: str | dict[str, Any]
    found: Model
    allow_files: bool

    def ask(self, job: dict[str, Any]) -> Judged:
        return judged({"model": self.model, **job}, self.allow_files)


def lengths(model: Model) -> tuple[int, int]:
    """Tokens of context in serving, and of a sequence in training: fewer where a model has positions for fewer."""
    most = model.spec.longest_sequence or CONTEXT
    return min(CONTEXT, most), min(SEQUENCE, most)


def ways(context: int, sequence: int) -> tuple[Way, ...]:
    """The usual ways of using a model."""

    def training(label: str, strategies: tuple[str, ...], **settings: Any) -> Way:
        return Way(label, {"task": "train", "training": {"sequence_length": sequence, **settings}}, strategies)

    def serving(label: str, weights: str) -> Way:
        return Way(label, {"task": "serve", "serving": {"weights": weights, "context": context}})

    return (
        serving("serve bf16", "bf16"),
        serving("serve int8", "int8"),
        serving("serve 4-bit", "nf4-double"),
        training("QLoRA (nf4)", ("ddp", "fsdp2"), precision="bf16-true", adapter=LORA, quantization="nf4-double"),
        training("LoRA (bf16)", ("ddp", "fsdp2"), precision="bf16-true", adapter=LORA),
        training("full, pure bf16", ("fsdp2",), precision="bf16-true"),
        training("full, mixed", ("fsdp2",), precision="bf16-mixed"),
    )


def _notes(context: int, sequence: int) -> list[str]:
    return [
        f"serving: vLLM, one sequence of {context} tokens, 90 % of the card; int8 and 4-bit as bitsandbytes stores weights",
        f"training: transformers on torch, 1 sequence of {sequence} tokens per GPU, sdpa, every layer recomputed, AdamW (fused)",
        f"LoRA: rank {LORA['rank']} on all linear layers, bf16; mixed: float32 weights, bf16 arithmetic; pure bf16: all in bf16",
        "on several GPUs: the simpler of DDP and FSDP2 that fits; serving splits each layer over a node's GPUs (tensor parallel)",
        "per GPU: what nvidia-smi would show, cached blocks, CUDA context and libraries included; tight: fragmentation decides",
        "not counted: workspaces inside kernels other than attention's, CUDA graphs",
    ]


def _row(question: _Question, way: Way, hardware: Hardware) -> FitRow:
    if not question.found.spec.runs:
        return _unknown(way, question.found.spec.refusal)
    best: tuple[str, Judged] | None = None
    try:
        for spread, job in _spreads(question, way, hardware):
            answer = question.ask(job)
            if best is None or answer.memory.total_bytes < best[1].memory.total_bytes:
                best = spread, answer
            if answer.verdict.fits:
                best = spread, answer
                break
    except NotModelled as error:
        return _unknown(way, error.message)
    if best is None:
        return _unknown(way, "no way to spread it over these GPUs")
    spread, answer = best
    memory, verdict = answer.memory, answer.verdict
    limit = offered(memory.capacity_bytes, answer.job)
    return FitRow(
        way=way.label,
        spread=spread,
        fits=verdict.fits,
        verdict=verdict.verdict,
        total_bytes=memory.total_bytes,
        peak_bytes=memory.peak_bytes,
        peak_phase=memory.peak_phase,
        headroom_bytes=None if limit is None else limit - memory.total_bytes,
        would_fit_with=smallest_change(question, way, hardware) if verdict.fits is False else "",
        problem="",
        job=answer.job.model_dump(mode="json"),
    )


def _unknown(way: Way, problem: str) -> FitRow:
    nothing = dict.fromkeys(("fits", "total_bytes", "peak_bytes", "headroom_bytes", "job"))
    return FitRow(way=way.label, spread="", verdict="unknown", peak_phase="", would_fit_with="", problem=problem, **nothing)


def _spreads(question: _Question, way: Way, hardware: Hardware) -> Iterator[tuple[str, dict[str, Any]]]:
    """The job of a way on some hardware, once for each sensible way of spreading it."""
    spec, total = question.found.spec, hardware.gpus * hardware.nodes
    if way.job["task"] == "serve":
        degree = max(d for d in tensor_degrees(spec) if d <= hardware.gpus)
        used = Hardware(gpu=hardware.gpu, memory=hardware.memory, gpus=degree)
        yield f"tensor {degree}" if degree > 1 else "1 GPU", {**way.job, "hardware": used, "parallelism": {"tensor": degree}}
    elif total == 1:
        yield "1 GPU", {**way.job, "hardware": hardware}
    else:
        for strategy in way.strategies:
            yield f"{strategy} x{total}", {**way.job, "hardware": hardware, "parallelism": {"strategy": strategy}}


def smallest_change(question: _Question, way: Way, hardware: Hardware) -> str:
    """The first of these that fits: half or a quarter of the tokens, then more of the same GPUs, doubling."""
    part, key = ("serving", "context") if "serving" in way.job else ("training", "sequence_length")
    for divisor in (2, 4):
        tokens = max(1, way.job[part][key] // divisor)
        if _fits(question, Way(way.label, {**way.job, part: {**way.job[part], key: tokens}}, way.strategies), hardware):
            return f"{key.replace('_', ' ')} {tokens}"
    gpus, nodes = hardware.gpus, hardware.nodes
    while gpus * nodes < MOST_GPUS:
        gpus, nodes = (gpus * 2, nodes) if gpus < 8 else (gpus, nodes * 2)
        if way.job["task"] == "serve" and nodes > hardware.nodes:
            break
        if _fits(question, way, Hardware(gpu=hardware.gpu, memory=hardware.memory, gpus=gpus, nodes=nodes)):
            return f"{gpus * nodes} such GPUs" if nodes == 1 else f"{nodes} nodes of {gpus} such GPUs"
    return "a larger card: no number of these does it"


def _fits(question: _Question, way: Way, hardware: Hardware) -> bool:
    try:
        return any(fits({"model": question.model, **job}, question.allow_files) for _, job in _spreads(question, way, hardware))
    except WillItFitError:
        return False
