"""A job on its page: its question in words, and what would change it with a click."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from estimator.contract.answer import Answer
from estimator.contract.job import Job, read_job
from estimator.contract.reading import parse_json
from estimator.pipeline.defaults import with_defaults
from estimator.pipeline.remedies import Remedy, remedies
from estimator.specs.resolve import resolve

from ..query import job_fields, job_mapping, job_query

Items = list[tuple[str, str]]
VERDICTS = {
    "fits": "it fits",
    "tight": "it fits, but tightly",
    "does not fit": "it does not fit",
    "unknown": "not known",
}
SERVERS = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM", "llama.cpp": "llama.cpp", "ollama": "Ollama"}

NARROWER = {
    "vllm": (("8-bit", "fp8"), ("4-bit", "awq-int4")),
    "sglang": (("8-bit", "fp8"), ("4-bit", "awq-int4")),
    "tensorrt-llm": (("8-bit", "fp8"), ("4-bit", "awq-int4")),
    "llama.cpp": (("8-bit", "q8_0"), ("4-bit", "q4_k_m")),
    "ollama": (("8-bit", "q8_0"), ("4-bit", "q4_k_m")),
    "transformers": (("8-bit", "int8"), ("4-bit", "nf4")),
}
"""Weights in fewer bits that each server loads."""

DERIVED = frozenset(
    (
        "training.head",
        "training.optimizer_implementation",
        "parallelism.data",
        "parallelism.strategy",
        "host.loading",
        "host.save",
    )
)
"""Fields that follow from others where a job does not say them."""


class Change(NamedTuple):
    """A suggestion, and the fields of the job with which it is followed; None where it is no single change."""

    text: str
    items: Items | None
    fits: bool


def named(job: Mapping[str, Any]) -> str:
    """What a job's model is called; one that is given by its sizes by its architecture."""
    model = job.get("model") or "a model"
    if isinstance(model, str) and model.startswith("{"):
        model = parse_json(model, "model")
    return str(model.get("name") or model.get("model_type") or "a model") if isinstance(model, Mapping) else str(model)


def title(job: Mapping[str, Any], on: str = "") -> str:
    """A job's question in words. `on`: the hardware as it was asked for."""
    where = on or hardware(job.get("hardware") or {})
    return f"{what(job)}{f' on {where}' if where else ''}"


def lowered(text: str) -> str:
    """A question within a sentence."""
    return text[:1].lower() + text[1:]


def what(job: Mapping[str, Any]) -> str:
    """What is done with the model."""
    name = named(job)
    if job.get("task") == "serve":
        serving = job.get("serving") or {}
        weights = serving.get("weights")
        engine = SERVERS.get(str(serving.get("engine")), "")
        many = serving.get("concurrency") or 1
        users = f" to {many} users" if int(many) > 1 else ""
        return f"Serve {name}{f' in {weights}' if weights else ''}{f' with {engine}' if engine else ''}{users}"
    training = job.get("training") or {}
    adapter = training.get("adapter")
    if not adapter:
        return f"Train {name}"
    kind = str(adapter.get("type") or "lora").upper().replace("LORA", "LoRA")
    return f"Fine-tune {name} with {'Q' if kind == 'LoRA' and training.get('quantization') else ''}{kind}"


def hardware(given: Mapping[str, Any]) -> str:
    """Hardware in words: 2 × rtx-4090, 2 nodes of 8 × h100."""
    card = given.get("gpu") or given.get("memory")
    gpus, nodes = given.get("gpus") or 1, given.get("nodes") or 1
    if not card:
        return ""
    each = str(card) if int(gpus) == 1 else f"{gpus} × {card}"
    return each if int(nodes) == 1 else f"{nodes} nodes of {each}"


def changes(answer: Answer, items: Items) -> list[Change]:
    """What is suggested, each with the fields of the job that would follow it where it is one change that was tried."""
    known = _known(answer)
    found = []
    for note in answer.notes:
        if note.kind != "suggestion":
            continue
        said = note.text.partition(" would need ")[0]
        change = known.get(said)
        if change is None and note.slug == "would-fit" and note.about and said.startswith(f"{note.about} "):
            change = {note.about: said.removeprefix(f"{note.about} ")}
        if note.slug == "expandable-segments":
            change = {"training.expandable_segments": "true"}
        found.append(Change(note.text, changed(items, change) if change else None, note.slug == "would-fit"))
    return found


def _known(answer: Answer) -> dict[str, dict[str, str]]:
    """Changes that an answer may speak of, alone or two together, by how it calls them; as fields of an address."""
    job = Job.model_validate(answer.job)
    alone = remedies(job, answer.memory, resolve(job.model, False).spec)
    together = [one.beside(other) for one in alone for other in alone if one.field != other.field]
    return {remedy.said: _fields(remedy) for remedy in [*alone, *together]}


def _fields(remedy: Remedy) -> dict[str, str]:
    emptied = [f"{part}.{name}" for part, settings in remedy.change.items() for name, value in settings.items() if value is None]
    return {**dict.fromkeys(emptied, ""), **job_fields(remedy.change)}


def changed(items: Iterable[tuple[str, str]], fields: Mapping[str, str]) -> Items:
    """A job's fields in an address with others in place of some; an empty one is taken away."""
    kept = [(name, value) for name, value in items if name not in fields and not _within(name, fields)]
    return kept + [(name, value) for name, value in fields.items() if value]


def tries(job: Mapping[str, Any], fits: bool | None) -> list[tuple[str, dict[str, str]]]:
    """Other jobs that are worth a click: smaller ones where it does not fit, larger ones where it does. None was tried."""
    most = resolve(job["model"], False).spec.longest_sequence or inf
    training, serving = job["training"], job["serving"]
    cards = int(job["hardware"]["gpus"])
    found: list[tuple[str, dict[str, str]]] = []
    if job["task"] == "serve":
        context, users = int(serving["context"] or 4096), int(serving["concurrency"])
        if not fits:
            found += [(f"{text} weights", {"serving.weights": name}) for text, name in NARROWER.get(str(serving["engine"]), ())]
            found.append(("half the context", {"serving.context": str(max(1, context // 2))}))
        else:
            if 2 * context <= most:
                found.append(("twice the context", {"serving.context": str(2 * context)}))
            found.append(("twice the users", {"serving.concurrency": str(2 * users)}))
        found.append((f"{2 * cards} cards", {"hardware.gpus": str(2 * cards), "parallelism.tensor": str(2 * cards)}))
        return found
    length, rows = int(training["sequence_length"]), int(training["micro_batch_size"])
    if not fits:
        if not training["adapter"]:
            found.append(("LoRA: train a small part", {"training.adapter.rank": "16", "host.save": ""}))
        if not training["quantization"]:
            both = {
                "training.adapter.rank": "16",
                "training.quantization": "nf4-double",
                "training.precision": "bf16-true",
                "host.save": "",
            }
            found.append(("QLoRA: and the rest in 4 bits", both))
        found.append(("half the length", {"training.sequence_length": str(max(1, length // 2))}))
        found.append(
            (
                f"{2 * cards} cards that share it",
                {"hardware.gpus": str(2 * cards), "parallelism.strategy": "fsdp2", "parallelism.data": ""},
            )
        )
    else:
        if 2 * length <= most:
            found.append(("twice the length", {"training.sequence_length": str(2 * length)}))
        found.append(("twice the sequences", {"training.micro_batch_size": str(2 * rows)}))
    return found


def _within(name: str, fields: Mapping[str, str]) -> bool:
    """Whether a field is said by `on`, where that is among those that are replaced."""
    return "on" in fields and name.startswith("hardware.")


def job_items(job: dict[str, Any]) -> Items:
    """A complete job as an address has it, its hardware in one word where it can be said so."""
    whole = Job.model_validate(job).model_dump(mode="json")
    items = _said(list(job_query(whole).items()))
    place = whole["hardware"]
    others = [name for name, _ in items if name.startswith("hardware.")]
    if set(others) <= {"hardware.gpu", "hardware.gpus"} and place["gpu"]:
        items = [(name, value) for name, value in items if name not in others]
        items.insert(1, ("on", place["gpu"] if place["gpus"] == 1 else f"{place['gpus']}x{place['gpu']}"))
    return items


def _said(items: Items) -> Items:
    """A job's fields without those that defaults would give it again: they would be in the way of changes."""
    job = read(items)
    model = resolve(job.model, False)
    whole = with_defaults(job, model.spec, model.stored)[0]
    for name in dict(items):
        fewer = [item for item in items if item[0] != name]
        if name in DERIVED and with_defaults(read(fewer), model.spec, model.stored)[0] == whole:
            items = fewer
    return items


def read(items: Items) -> Job:
    """The job that an address asks about."""
    return read_job(job_mapping(items))
