"""Pages of files: one of a framework that is read, what was measured beside what is predicted, a job taken along as a file."""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import InvalidJob, InvalidValue, WillItFitError
from estimator.contract.units import gib
from estimator.exchange import WRITE, WRITTEN, Surroundings, written
from estimator.exchange import read as read_file
from estimator.exchange.ask import TO
from estimator.exchange.ask import asked as requested
from estimator.exchange.documents import answer as answer_file
from estimator.exchange.found import Found
from estimator.facts.spelling import shown
from estimator.hardware.parse import read_hardware
from estimator.measured.answers import MeasuredRow
from estimator.measured.explain import explain
from estimator.measured.record import QUANTITIES
from estimator.planner.fix import fix

from ..query import job_mapping
from .asked import Asked
from .job import job_items, title
from .of_job import answered, job_asked

CONFIG = re.compile(r'\s*\{[^{}]*"(architectures|model_type)"\s*:')
"""How a model's config.json begins."""
SERVERS = ("vllm", "sglang", "tensorrt-llm")
"""Programs that serve; the others train."""
OF_RECORDS = ("measured", "text", "release", "from")
"""Fields of the page of a measurement that are no job's."""


def file(asked: Asked) -> dict[str, Any]:
    """A file of a framework, read as a job and answered; and, where that was asked for, what to edit so that it fits."""
    text, on, model = (asked.get(name) or None for name in ("text", "on", "model"))
    if not text:
        raise InvalidJob("is empty: paste what your file says, or the command that starts it", "file")
    if CONFIG.match(text) and not model:
        raise InvalidJob("is a model's config.json: paste it into the field Model of the page Will it fit?", "file")
    found = _read(asked, text)
    said = answer_file(found, False)
    fixes = (
        fix(text.encode(), on, model, asked.get("from") or None, asked.get("release") or None)
        if asked.get("do") == "fix"
        else None
    )
    items = job_items(said.job)
    asked_of = f"{title(said.job, on or '')} (a file of {found.framework})"
    return answered(said, items) | {"title": asked_of, "question": asked_of, "found": found, "fixes": fixes}


def _read(asked: Asked, text: str) -> Found:
    """A file as a job, with what is said beside it of its model, its hardware, whose it is, and its release."""
    given, model, on, release = (asked.get(name) or None for name in ("from", "model", "on", "release"))
    around = Surroundings(hardware=read_hardware(on).hardware if on else None, release=release)
    found = read_file(text, given, model=model, around=around)
    if not found.job.get("model"):
        raise InvalidValue(f"a file of {found.framework} names no model: write it into the field Model", "model")
    return found


def measurement(asked: Asked) -> dict[str, Any]:
    """What was measured of a job, such as an out-of-memory message, beside what is predicted. The job: the fields, or a file."""
    about: dict[str, Any] = {}
    record, text, on = asked.get("measured"), asked.get("text"), asked.get("on") or None
    if text:
        given = _read(asked, text).job
    else:
        _, items, about = job_asked(asked, *OF_RECORDS)
        given, on = job_mapping(items), None
    about |= {"explanation": None}
    if not record:
        if text:
            raise InvalidJob("is empty: paste what was measured, such as the message that memory ran out", "measured")
        return about | {"title": f"{about['question']}: what was measured"}
    explained = explain(given, record, on=on, allow_files=False)
    items = job_items(explained.job)
    question = title(explained.job)
    return about | {
        "title": f"{question}: {explained.verdict}",
        "question": question,
        "job_items": items,
        "task": explained.job["task"],
        "explanation": explained,
        "measured_rows": [_row(row) for row in explained.rows],
    }


def _row(row: MeasuredRow) -> tuple[str, str, str, str]:
    """A quantity, measured, predicted, and how far they are apart."""
    tokens = row.quantity == "cache_tokens"
    say = (lambda value: f"{value:,}") if tokens else gib
    name = "tokens of the cache" if tokens else QUANTITIES[row.quantity]
    if row.predicted is None:
        return name, say(row.measured), "", ""
    apart = row.measured - row.predicted
    return name, say(row.measured), say(row.predicted), f"{'+' if apart >= 0 else '-'}{say(abs(apart))}"


def along(asked: Asked) -> dict[str, Any]:
    """A job to take along: as a file or a command of a program that runs it, or as a request to a scheduler."""
    job, _, found = job_asked(asked, "to")
    name = asked.get("to").lower()
    programs = [one for one in WRITTEN if (one in SERVERS) == (job.task == "serve")]
    found |= {"programs": programs, "parallelism": [*WRITE], "schedulers": [*TO], "to": name, "text": "", "refused": ""}
    if not name:
        return found | {"title": f"{found['question']}: take it along"}
    if name not in (*WRITTEN, *TO):
        raise InvalidValue(f"{shown(name)} is nothing that a job is written for; write {', '.join([*programs, *TO])}", "to")
    try:
        text = (requested if name in TO else written)(job, name, allow_files=False)
    except WillItFitError as error:  # the page still says what else there is
        text, found["refused"] = "", str(error)
    return found | {"title": f"{found['question']}: for {name}", "text": text}
