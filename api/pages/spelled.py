"""What a person writes by hand in an address, as the page of a job has it: `gpu` for `on`, `method=qlora`."""

from __future__ import annotations

from collections.abc import Iterable

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Hardware, Job, Serving, Training
from estimator.facts.spelling import shown
from estimator.hardware.capacity import capacity
from estimator.hardware.parse import read_hardware
from estimator.planner.cases import usual_job
from estimator.planner.numbers import OTHERWISE, POSITIONS
from estimator.planner.ways import platform, slug, ways

from ..query import job_fields
from .asked import Asked, Items, in_full

HARDWARE = ("gpu", "hardware", "card")
"""Names for `on`."""
USES = ("method", "way", "task")
"""Names under which a use of a model is written; the first that is given says most of it."""
TRACKERS = ("fbclid", "gclid", "utm_")
"""How names begin that other sites put behind an address that is shared."""
OF_MODEL = ("model", "on", "context", "concurrency", "sequence", "batch", "tokens", "engine")
"""What is asked of a model on some hardware, whatever it is used for."""
LENGTHS = {"sequence": ("training.sequence_length",)}
"""What a model's pages call a length that a job has under another name."""


def meant(asked: Asked) -> Asked:
    """The items of a job with their own names where they were written as people do. Raises `InvalidJob` for a use that is none,
    and `NotModelled` for one that its hardware does not have; what is no field stays, for the job to refuse."""
    given = placed(asked)
    items = given.items
    uses = [given.get(name).lower() for name in USES if given.get(name)]
    use = uses[0] if uses else _task(name for name, _ in items if name not in OF_MODEL)
    if not use:
        return given
    plain = use in ("train", "serve") and not given.get("way")
    said = [("task", use)] if plain else _way(use, given.get("on"))
    task = said[0][1]
    if uses and uses[-1] in ("train", "serve") and uses[-1] != task:
        raise Contradiction(f"{shown(use)} is no way to {uses[-1]}", "task")
    own = [(_field(name, task), value) for name, value in items if name not in USES]
    own = [(name, in_full(value.strip()) if name in POSITIONS else value) for name, value in own]
    if not plain and not any(name.startswith("parallelism.") for name, _ in own):
        said, own = _spread(said, own, use)
    names = {name for name, _ in own}
    return Asked([*(item for item in said if item[0] not in names), *own])


def use_of(asked: Asked) -> str:
    """What a model is used for, by the short name of a way, as the pages that ask for a card or a model take it."""
    return next((value for name in USES if (value := asked.get(name).lower()) not in ("", "train")), "")


def placed(asked: Asked) -> Asked:
    """The hardware as `on`, where `gpus` beside it counts; without what other sites put behind an address."""
    items = [(name, value) for name, value in asked.items if not name.startswith(TRACKERS)]
    named = dict(items)
    name = next((name for name in HARDWARE if name in named), None)
    if name is None or "on" in named:
        return Asked(items)
    count = f"{named['gpus'].strip()}x " if "gpus" in named else ""
    return Asked([("on", f"{count}{named[name].strip()}"), *(item for item in items if item[0] not in (name, "gpus"))])


def _task(names: Iterable[str]) -> str:
    """What fields that nobody said the task of belong to; empty where they do not say."""
    for name in names:
        for task, part in (("train", "training"), ("serve", "serving")):
            if _field(name, task).startswith(f"{part}."):
                return task
    return ""


def _field(name: str, task: str) -> str:
    """The dotted name of a field that was written by its last one, or as programs call it; else the name as it is."""
    if "." in name or name in Job.model_fields:
        return name
    part, model = ("training", Training) if task == "train" else ("serving", Serving)
    if name in model.model_fields:
        return f"{part}.{name}"
    others = LENGTHS.get(name) or OTHERWISE.get(name.replace("-", "_"), ())
    return next((other for other in others if other.startswith((f"{part}.", "parallelism."))), name)


def _way(name: str, on: str) -> Items:
    """The task, and the fields, that a usual way of using a model is on some hardware."""
    slug(name)
    kind = platform(capacity(read_hardware(on).hardware if on else Hardware()))
    way = next((way for way in ways(kind, {}, {}) if way.answers(name)), None)
    refused = None if way is None else way.refusal(kind)
    if way is None or refused is not None:
        raise NotModelled(refused.why if refused else f"not among the usual ways of using a model on {kind.name}", name)
    return [("task", way.job["task"]), *job_fields({way.part: way.settings}).items()]


def _spread(said: Items, own: Items, way: str) -> tuple[Items, Items]:
    """Both with the parallelism of a usual way over several GPUs, as the headline has it: at times of fewer of them."""
    given = Asked(own)
    machine = read_hardware(given.get("on")).hardware if given.get("on") else Hardware()
    if not given.get("model") or machine.gpus * machine.nodes == 1:
        return said, own
    job = usual_job(given.get("model"), machine, way, allow_files=False)
    if job["hardware"] != machine:
        place = job_fields({"hardware": job["hardware"].model_dump(mode="json", exclude_defaults=True)})
        own = [*place.items(), *(item for item in own if item[0] != "on")]
    return [*said, *job_fields({"parallelism": job.get("parallelism", {})}).items()], own
