"""Whether what is about to be started fits: asked by those who start it, a cluster's webhook or a wrapper around `sbatch`.

Nothing is refused for what is not known: of the three rulings only `no` may keep a job from running, and it is given only where
even the low end of what the job needs is more than its hardware has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from estimator.contract.answer import Answer
from estimator.contract.errors import WillItFitError
from estimator.contract.job import Hardware, Job
from estimator.exchange.configuration import Surroundings
from estimator.exchange.documents import answer, read
from estimator.exchange.platforms import GPU
from estimator.hardware.parse import read_hardware
from estimator.pipeline.verdict import offered

ON, MODEL = "willitfit/on", "willitfit/model"
"""Annotations of an object of Kubernetes: its hardware and its model, where its command and its labels do not say them."""
KSERVE = ("InferenceService", "LLMInferenceService")
MOST_WARNING = 250
"""Characters of a warning: Kubernetes cuts off what is longer than 256."""


class Ruling(NamedTuple):
    """What is said of a job before it starts."""

    fits: Literal["yes", "no", "unknown"]
    says: str
    """The verdict and its reason, or why there is none."""


def ruling(text: str, given: str | None, model: str | None, around: Surroundings) -> Ruling:
    """What is said of a file, a script or a command. Raises nothing for what it says."""
    try:
        found = read(text, given, model=model, around=around)
        return ruled(answer(found, around.allow_files))
    except WillItFitError as error:
        return Ruling("unknown", f"not known whether it fits: {error}")


def ruled(said: Answer) -> Ruling:
    """What follows from an answer: no only where the low end of the range is more than the hardware has."""
    change = next((f"; {note.text}" for note in said.notes if note.slug == "would-fit"), "")
    words = f"{said.verdict}: {said.reason}{change}"
    if said.fits is None:
        return Ruling("unknown", words)
    limit = offered(said.memory.capacity_bytes, Job.model_validate(said.job))
    if said.fits:
        return Ruling("yes", words)
    certain = limit is not None and said.memory.range_bytes[0] > limit
    return Ruling("no", words) if certain else Ruling("unknown", f"{words}; not certain: the low end of what is expected does")


def admitted(review: Mapping[str, Any], enforce: bool) -> dict[str, Any]:
    """The `AdmissionReview` (admission.k8s.io/v1) that answers one: of a pod, or of whatever has a template of one.

    Allowed without a word: what asks for no GPU, and what fits. Allowed with a warning: what is not known, and what does not fit,
    unless `enforce` says to deny that. `review` has a `request` with a `uid`; whatever else it says raises nothing.
    """
    request = review["request"]
    given = request.get("object")
    said = _of_object(given) if isinstance(given, Mapping) and request.get("operation") != "DELETE" else None
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if said is not None and said.fits == "no" and enforce:
        response |= {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": f"willitfit: {said.says}"}}
    elif said is not None and said.fits != "yes":
        response["warnings"] = [warning(said.says)]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def warning(text: str) -> str:
    """A warning as Kubernetes shows one: a line that is not cut off."""
    line = " ".join(f"willitfit: {text}".split())
    return line if len(line) <= MOST_WARNING else f"{line[: MOST_WARNING - 1]}…"


def _of_object(given: Mapping[str, Any]) -> Ruling | None:
    """What is said of an object; nothing of one that asks for no GPU."""
    text = json.dumps(given)
    if f'"{GPU}":' not in text:
        return None
    metadata = given.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    notes = notes if isinstance(notes, Mapping) else {}
    hardware: Hardware | None = None
    if on := notes.get(ON):
        try:
            hardware = read_hardware(str(on)).hardware
        except WillItFitError as error:
            return Ruling("unknown", f"annotation {ON}: {error}")
    model = str(notes[MODEL]) if notes.get(MODEL) else None
    whose = "kserve" if given.get("kind") in KSERVE else "kubernetes"
    return ruling(text, whose, model, Surroundings(hardware=hardware))
