"""Pages that ask of one job: the answer, memory over a step, other values, how far it can go, beside another, what it costs."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from markupsafe import Markup

from estimator.contract.answer import DEFAULT, Answer
from estimator.contract.errors import InvalidJob, InvalidValue
from estimator.contract.job import Job
from estimator.facts.spelling import shown
from estimator.pipeline.estimation import estimate
from estimator.planner.budget import Limits, budget
from estimator.planner.diff import diff
from estimator.planner.limits import limit
from estimator.planner.what_if import read_changes, what_if
from estimator.timelines.picture import svg
from estimator.timelines.timeline import record, timeline_of

from ..query import job_mapping
from .asked import Asked, Items
from .forms import FIELDS, METHODS
from .job import VERDICTS, changed, changes, job_items, lowered, read, title, tries
from .pictures import components, room, stacked_bar, time_bar, time_parts, width

MOST_COMBINATIONS = 48
"""Combinations that a page tries; the command line and REST try more."""
TENSORS = 15
"""Tensors that a page lists."""
OTHER_CARDS = "rtx-4090,l40s,a100-80gb,h100,h200"


def job_page(asked: Asked) -> dict[str, Any]:
    """The answer to one job."""
    items = asked.items
    return answered(estimate(job_mapping(items), allow_files=False), items, asked.get("on"))


def answered(answer: Answer, items: Items, on: str = "") -> dict[str, Any]:
    """What a page says of an answer."""
    said = answer.assumptions
    return _of(answer.job, items, on) | {
        "answer": answer,
        "verdict": VERDICTS[answer.verdict],
        "room": room(answer),
        "other_cards": OTHER_CARDS,
        "bar": stacked_bar(answer),
        "parts_of_memory": components(answer.memory),
        "time_bar": time_bar(answer),
        "time_parts": time_parts(answer),
        "changes": changes(answer, items),
        "tries": [(text, changed(items, fields)) for text, fields in tries(answer.job, answer.fits)],
        "assumptions": [one for one in said if not one.startswith(DEFAULT)],
        "defaults": [one.removeprefix(DEFAULT) for one in said if one.startswith(DEFAULT)],
        "api": ("v1/estimate", items),
    }


def _of(job: dict[str, Any], items: Items, on: str = "") -> dict[str, Any]:
    return {"title": title(job, on), "question": title(job, on), "job_items": items, "task": job["task"]}


def job_asked(asked: Asked, *names: str) -> tuple[Job, Items, dict[str, Any]]:
    """The job of an address without the fields that are a page's own, and what each page says of it."""
    items = asked.without(*names)
    if not any(name == "model" or name.startswith("model.") for name, _ in items):
        raise InvalidJob("give a model, such as llama-3-8b or 13B", "model")
    job = read(items)
    if ("task", job.task) not in items:
        items = [("task", job.task), *items]
    return job, items, _of(job.model_dump(mode="json"), items, asked.get("on"))


def timeline(asked: Asked) -> dict[str, Any]:
    """Live bytes over a step."""
    job, items, found = job_asked(asked)
    drawn = timeline_of(record(job, allow_files=False), TENSORS)
    picture = Markup(svg(drawn, styled=False))
    api = ("v1/timeline", items)
    return found | {"title": f"{found['question']}: memory over a step", "timeline": drawn, "picture": picture, "api": api}


def other_values(asked: Asked) -> dict[str, Any]:
    """A job with other values of some of its fields; without any, what may be asked."""
    job, items, found = job_asked(asked, "change", "field", "values")
    texts = asked.all("change")
    if asked.get("field"):
        texts = [f"{asked.get('field')}={asked.get('values')}"]
    found |= {"presets": presets(job), "field": asked.get("field"), "values": "", "what_if": None}
    if not texts:
        return found | {"title": f"{found['question']}: with other values"}
    tried = what_if(job, read_changes(texts), most=MOST_COMBINATIONS, allow_files=False)
    rows = []
    for row in tried.rows:
        # hardware is said by `on` in an address
        values = {("on" if name == "hardware" else name): _text(value) for name, value in row.values.items()}
        rows.append({"row": row, "items": changed(items, values)})
    widest = max([max(row.total_bytes or 0, row.offered_bytes or 0) for row in tried.rows] or [1])
    field, _, given = texts[0].partition("=")
    names = " and ".join(name.rpartition(".")[2].replace("_", " ") for name in tried.fields)
    return found | {
        "title": f"{found['question']}: with other {names}",
        "what_if": tried,
        "rows": rows,
        "widest": widest,
        "field": field,
        "values": given,
        "api": ("v1/what-if", [*items, *(("change", text) for text in texts)]),
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def presets(job: Job) -> list[tuple[str, str]]:
    """Questions about other values that are worth a click: how they are put, and the change that they are."""
    cards = [("other cards", f"hardware={OTHER_CARDS}"), ("1 to 8 such cards", "hardware.gpus=1..8")]
    if job.task == "serve":
        length, users = job.serving.context or 4096, job.serving.concurrency
        return [
            ("shorter and longer contexts", f"serving.context={_around(length)}"),
            ("fewer and more users at once", f"serving.concurrency={_around(users)}"),
            ("weights in fewer bits", "serving.weights=bf16,fp8,awq-int4"),
            *cards,
        ]
    length, rows = job.training.sequence_length or 2048, job.training.micro_batch_size
    asked = [
        ("shorter and longer sequences", f"training.sequence_length={_around(length)}"),
        ("fewer and more sequences per GPU", f"training.micro_batch_size={_around(rows)}"),
        ("with and without checkpointing", "training.activation_checkpointing=full,none"),
        ("other optimizers", "training.optimizer=adamw,adamw-8bit,sgd"),
    ]
    if job.training.adapter:
        asked.append(("frozen weights in fewer bits", "training.quantization=null,int8,nf4"))
    if job.hardware.gpus > 1:
        asked.append(("other ways to spread it", "parallelism.strategy=ddp,zero2,zero3,fsdp2"))
    return [*asked, *cards]


def _around(value: int) -> str:
    return ",".join(str(max(1, value * times // 4)) for times in (1, 2, 4, 8, 16) if value * times >= 4)


LIMITS = {
    "train": (
        ("the longest sequence", "training.sequence_length", "max"),
        ("the most sequences per GPU", "training.micro_batch_size", "max"),
        ("the fewest cards", "hardware.gpus", "min"),
    ),
    "serve": (
        ("the longest context", "serving.context", "max"),
        ("the most users at once", "serving.concurrency", "max"),
        ("the fewest cards", "hardware.gpus", "min"),
    ),
}
"""How far a job can go: how it is put, the field, and whether its largest or its smallest value is asked for."""


UNBOUND = ("training.tokens", "serving.hours")
"""Numbers on which nothing that is needed at once depends."""


def how_far(asked: Asked) -> dict[str, Any]:
    """The largest, or the smallest, value of a number with which a job fits."""
    job, items, found = job_asked(asked, "field", "bound")
    field, bound = asked.get("field"), asked.get("bound", "max")
    found |= {"limits": LIMITS[job.task], "numbers": _numbers(job), "limit": None}
    if not field:
        return found | {"title": f"{found['question']}: how far can it go?"}
    if bound not in ("max", "min"):
        raise InvalidValue(f"{shown(bound)} is neither max nor min", "bound")
    name = next((said for said, known, way in LIMITS[job.task] if (known, way) == (field, bound)), f"{bound} {field}")
    reached = limit(job, field, "max" if bound == "max" else "min", allow_files=False)
    value = "not known" if reached.fits is None else "none" if reached.value is None else f"{reached.value:,}"
    return found | {
        "title": f"{found['question']}: {name}",
        "limit": reached,
        "name": name,
        "value": value,
        "at": changed(items, {field: str(reached.value)}) if reached.value is not None else None,
        "api": ("v1/limit", [*items, ("field", field), ("bound", bound)]),
    }


def _numbers(job: Job) -> list[tuple[str, str]]:
    """The whole numbers of a job that its forms show, and what they are called."""
    rank = "training.adapter.rank"
    found = [(f.name, f.label) for f in FIELDS[job.task] if not f.options and f.name not in UNBOUND]
    kept = [one for one in found if one[0] != rank or job.training.adapter]
    return [*kept, ("hardware.gpus", "Number of cards"), ("hardware.nodes", "Number of nodes")]


def compare(asked: Asked) -> dict[str, Any]:
    """A job beside another, which is the same but for the fields that begin with `b.`."""
    _, items, found = job_asked(asked)
    other = {name.removeprefix("b."): value for name, value in asked.items if name.startswith("b.")}
    found |= {"other": other, "sides": []}
    if not other:
        return found | {"title": f"{found['question']}: beside another"}
    second = changed(items, other)
    mappings = [job_mapping(items), job_mapping(second)]
    answers = [estimate(each, allow_files=False) for each in mappings]
    widest = width(*answers)
    sides = []
    for answer, each in zip(answers, (items, second), strict=True):
        on = next((value for name, value in each if name == "on"), "")
        sides.append(answered(answer, each, on) | {"bar": stacked_bar(answer, widest)})
    differ = diff({"a": mappings[0], "b": mappings[1]})
    return found | {"title": f"{sides[0]['question']}, or {lowered(sides[1]['question'])}?", "sides": sides, "diff": differ}


def cost(asked: Asked) -> dict[str, Any]:
    """Every way to rent what a training run needs; of a served job, what its answer says."""
    asked = trained(asked)
    job, items, found = job_asked(asked, "max_cost", "max_hours")
    found |= {"title": f"{found['question']}: what does it cost?", "budget": None, "answer": None}
    if job.task == "serve":
        return found | {"answer": estimate(job, allow_files=False)}
    if job.training.tokens is None and job.training.dataset is None:
        return found
    limits = Limits(_amount(asked, "max_cost"), _hours(asked), 2**17)
    rented = budget(job, limits, rows=10, allow_files=False)
    wanted = [(name, asked.get(name).lstrip("$")) for name in ("max_cost", "max_hours")]
    return found | {
        "budget": rented,
        "rows": [(row, job_items(row.job)) for row in rented.rows],
        "api": ("v1/budget", [*items, *wanted]),
    }


def trained(asked: Asked) -> Asked:
    """What was asked, with the fields of a job that a method of training stands for in its place. Raises `InvalidValue`."""
    method = asked.get("method").lower()
    if not method:
        return asked
    if method not in METHODS:
        raise InvalidValue(f"{shown(method)} is no way to train; write {', '.join(METHODS)}", "method")
    return Asked(changed(((name, value) for name, value in asked.items if name != "method"), METHODS[method]))


def _amount(asked: Asked, name: str) -> Decimal | None:
    text = asked.get(name).lstrip("$")
    if not text:
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(0)
    if not value.is_finite() or not 0 < value <= 10**12:
        raise InvalidValue(f"{shown(text)} is no amount: write a number such as 500", name)
    return value


def _hours(asked: Asked) -> float | None:
    found = _amount(asked, "max_hours")
    return None if found is None else float(found)
