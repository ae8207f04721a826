"""Pages that ask of a model or a card, before there is a job: which ways fit, which card does it, which models fit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from estimator.contract.errors import InvalidJob, InvalidValue
from estimator.facts.spelling import shown
from estimator.planner.headline import fit
from estimator.planner.headline_answer import Fit
from estimator.planner.which import which, with_speed
from estimator.planner.which_answer import WhichRow
from estimator.views.fitting import fitting

from .asked import Asked, Items
from .forms import TASKS
from .job import job_items, named
from .spelled import OF_MODEL, use_of

LENGTHS = ("context", "concurrency", "sequence", "batch")
ROWS = 12
"""Cards that can be rented, or models, that a page lists."""
MOST_ROWS = 200
"""Cards of which a page says nothing but that they do it."""


def headline(asked: Asked) -> dict[str, Any]:
    """Every usual way of using a model on some hardware."""
    model, on = needed(asked, "model"), needed(asked, "on")
    said: dict[str, Any] = {name: asked.get(name) or None for name in ("tokens", "engine")}
    found = fit(model, on, False, **asked.numbers(*LENGTHS), **said)
    name = f"this {named({'model': model})} model" if model.startswith("{") else found.model
    return {
        "title": f"Does {name} fit on {found.hardware}?",
        "name": name,
        "fit": found,
        "counts": {name: sum(row.verdict == name for row in found.rows) for name in ("unknown", "does not run")},
        "good": sum(bool(row.fits) for row in found.rows),
        "rows": _rows(found, model, on),
        "notes": [*(f"{row.way}: {row.note}" for row in found.rows if row.note), *_unread(asked)],
        "api": ("v1/fit", asked.items),
    }


def _unread(asked: Asked) -> list[str]:
    """What the address has that no usual way depends on."""
    return [f"not read: {shown(name)}, which is no field of this question" for name, _ in asked.items if name not in OF_MODEL]


def _rows(found: Fit, model: str, on: str) -> list[dict[str, Any]]:
    """The table's rows, each with the address of its job in full and a bar of its bytes."""
    widest = max([row.total_bytes or 0 for row in found.rows] + [found.capacity_bytes or 0])
    rows = []
    for row in found.rows:
        items = [("model", model), ("on", on)]
        if row.job:
            if row.job["task"] == "serve":
                items = [("model", model), ("on", _used(row.job["hardware"]))]
            items += _fields(row.job)
        rows.append(
            {
                "row": row,
                "items": items if row.job else None,
                "change": job_items(row.would_fit_job) if row.would_fit_job else None,
                "bytes": row.total_bytes or 0,
                "widest": min(widest, 2 * (found.capacity_bytes or widest)),
            }
        )
    return rows


def _fields(job: dict[str, Any]) -> Items:
    """A job's fields but its model and hardware."""
    return [(name, value) for name, value in job_items(job) if name.partition(".")[0] not in ("model", "hardware", "on")]


def _used(hardware: dict[str, Any]) -> str:
    return f"{hardware['gpus']}x {hardware['gpu'] or hardware['memory']}"


def which_card(asked: Asked) -> dict[str, Any]:
    """Which cards, and how few of them, do it."""
    model, task = needed(asked, "model"), _task(asked)
    lengths = asked.numbers(*LENGTHS)
    limits: dict[str, Any] = {name: asked.get(name) or None for name in ("tokens", "within", "under", "memory")}
    found = which(model, task, allow_files=False, top=None, **lengths, **limits)
    rented = [row for row in found.rows if row.price_per_hour]
    rented.sort(key=lambda row: Decimal(row.total or row.price_per_hour or 0))
    return {
        "title": f"Which GPU? {TASKS[task].format(found.model)}",
        "which": found,
        "rented": [(with_speed(row, False), job_items(row.job)) for row in rented[:ROWS]],
        "others": [(row, [("model", model), ("on", _cards(row))]) for row in found.rows[:MOST_ROWS]],
        "api": ("v1/which", asked.items),
    }


def _cards(row: WhichRow) -> str:
    each = f"{row.gpus}x {row.accelerator}"
    return each if row.nodes == 1 else f"{row.nodes} nodes of {each}"


def which_model(asked: Asked) -> dict[str, Any]:
    """Which models fit on some hardware."""
    on, task = needed(asked, "on"), _task(asked)
    found = fitting(on, task, search=asked.get("search"), top=ROWS, **asked.numbers(*LENGTHS))
    return {
        "title": f"Which models fit on {found.hardware}? {TASKS[task].format('them')}",
        "fitting": found,
        "rows": [(row, job_items(row.job)) for row in found.rows],
        "api": ("v1/fitting", asked.items),
    }


def _task(asked: Asked) -> str:
    task = use_of(asked) or asked.get("task", "serve")
    if task not in TASKS:
        raise InvalidValue(f"{shown(task)} is no use of a model; write {', '.join(TASKS)}", "task")
    return task


def needed(asked: Asked, name: str) -> str:
    """A field without which nothing can be said: the model, or the hardware. Raises `InvalidJob` where it is not given."""
    said = {"model": "a model, such as llama-3-8b or 13B", "on": "the hardware, such as rtx-4090, 24GB or 8xH100"}
    if not asked.get(name):
        raise InvalidJob(f"give {said[name]}", "model" if name == "model" else "hardware")
    return asked.get(name)
