"""All sentences of an answer, in order, each with its kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from estimator.contract.answer import DEFAULT, Memory, Note
from estimator.contract.job import Job
from estimator.contract.notes import Said, all_said
from estimator.contract.units import gib
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.pipeline.notes.hardware import of_hardware, warnings_of_hardware
from estimator.pipeline.notes.images import of_audio, of_images
from estimator.pipeline.notes.training import of_training
from estimator.serving.engines import engine_of
from estimator.tape.tape import ACTIVATION, LOSS, Tape

LISTS = {
    "assumption": "assumptions",
    "default": "assumptions",
    "warning": "warnings",
    "suggestion": "suggestions",
    "not modelled": "not_modelled",
}
"""The list of an answer that a note's text is in, by its kind."""


def of_kind(kind: str, said: Iterable[Said]) -> list[Note]:
    """Sentences as notes of a kind."""
    return [Note(kind=kind, slug=one.slug, about=one.about, text=one.text) for one in said]


def texts(notes: Iterable[Note]) -> dict[str, list[str]]:
    """An answer's lists of sentences."""
    found: dict[str, list[str]] = {name: [] for name in LISTS.values()}
    for note in notes:
        found[LISTS[note.kind]].append(DEFAULT + note.text if note.kind == "default" else note.text)
    return found


def assumptions(job: Job, spec: ModelSpec, place: Topology, card: Capacity) -> Iterator[Said]:
    """What is taken for granted about the run."""
    if job.task == "train":
        yield from of_training(job, place)
        yield from of_images(job.training.images, spec)
        yield from of_audio(job.training.audio, spec)
    else:
        requests = f"{job.serving.concurrency} sequence(s) of {job.serving.context} tokens, prompt and answer together"
        yield Said("requests", requests, "serving.concurrency")
        yield from all_said(f"engine-{job.serving.engine}", engine_of(job).assumptions(job.serving, spec), "serving.engine")
    yield from of_hardware(job, place, card)


def warnings(job: Job, spec: ModelSpec, place: Topology, card: Capacity, tape: Tape) -> Iterator[Said]:
    """What to know before relying on the answer."""
    trains = job.task == "train"
    tokens = job.training.sequence_length if trains else job.serving.context
    most = spec.longest_sequence
    if most and tokens > most:
        where = "training.sequence_length" if trains else "serving.context"
        yield Said("too-long", f"{tokens} tokens are more than the {most} that the model was made for", where)
    yield from all_said("run", tape.remarks)
    yield from warnings_of_hardware(job, place, card)


def what_stays(job: Job, memory: Memory) -> Iterator[Said]:
    """What an adapter does not make smaller, where that is the larger part of the peak."""
    kept = sum(memory.at_peak.get(part, 0) for part in (ACTIVATION, LOSS))
    if job.task == "train" and job.training.adapter and 2 * kept > memory.peak_bytes:
        share = kept / memory.peak_bytes
        text = f"an adapter leaves activations and logits as they are: {share:.0%} of the peak, {gib(kept)}"
        yield Said("what-stays", text, "training.adapter")
