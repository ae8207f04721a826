"""What is worked out for each kind of question, wherever it is worked out: here, or in a worker process."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable
from decimal import Decimal
from math import inf
from typing import Any, NamedTuple, cast

from estimator.contract.errors import Contradiction, InvalidJob, WillItFitError
from estimator.contract.job import read_job
from estimator.contract.reading import decoded, parse_json
from estimator.exchange import Surroundings, read, written
from estimator.exchange.ask import asked
from estimator.exchange.gate import admitted
from estimator.hardware.accelerator import accelerator
from estimator.hardware.node import node
from estimator.hardware.parse import read_hardware
from estimator.measured.bottleneck import bottleneck
from estimator.measured.calibrate import calibrate
from estimator.measured.explain import explain
from estimator.pipeline.estimation import estimate
from estimator.planner.budget import Limits, budget
from estimator.planner.check import check_texts
from estimator.planner.diff import diff
from estimator.planner.fix import fix
from estimator.planner.headline import fit
from estimator.planner.limits import limit
from estimator.planner.plan import plan
from estimator.planner.replicas import replicas
from estimator.planner.swept import swept
from estimator.planner.what_if import read_changes, what_if
from estimator.planner.which import which
from estimator.timelines.chrome import chrome
from estimator.timelines.picture import svg
from estimator.timelines.snapshot import snapshot
from estimator.timelines.timeline import record, timeline_of
from estimator.views import listing
from estimator.views.checks import FORMS
from estimator.views.fitting import fitting
from estimator.views.inspection import inspect_model
from estimator.views.picture import picture
from estimator.views.schemas import schema_text

from .page import render, render_embed
from .pages.asked import asked as asked_items
from .pages.badge import badge
from .pages.of_search import MOST_SIMULATED
from .problems import MEDIA_TYPE, document
from .query import job_mapping

Items = list[tuple[str, str]]
JSON, TEXT, HTML = "application/json", "text/plain; charset=utf-8", "text/html; charset=utf-8"
SCHEMA = "application/schema+json"
CSV, SVG, BINARY = "text/csv; charset=utf-8", "image/svg+xml", "application/octet-stream"
MOST_COMBINATIONS = 256
MOST_POINTS = 65_536
"""Combinations of values that a request may have estimated."""
MOST_FILES = 32
"""Files of one check."""


class Rendered(NamedTuple):
    """A response as it is sent, but for its headers."""

    status: int
    media_type: str
    body: bytes


def answer(kind: str, arguments: dict[str, Any]) -> Rendered:
    """The response to a question of a kind; errors are problem documents. Raises `MemoryError` alone."""
    try:
        return QUESTIONS[kind](**arguments)
    except WillItFitError as error:
        text = document(error.status, error.slug, str(error), error.code, error.where or None)
        return Rendered(error.status, MEDIA_TYPE, text.encode())
    except MemoryError:
        raise
    except Exception:
        traceback.print_exc(file=sys.stderr)
        text = document(500, "internal-error", "this should not have happened; please report it")
        return Rendered(500, MEDIA_TYPE, text.encode())


def _json(text: str) -> Rendered:
    return Rendered(200, JSON, text.encode())


def _job(body: bytes) -> dict[str, Any]:
    text = decoded(body, "request body")
    if not text.strip():
        raise InvalidJob('is empty; send a job as JSON, such as {"model": "llama-2-13b"}', "request body")
    job = parse_json(text, "request body")
    if not isinstance(job, dict):
        raise InvalidJob("is no JSON object; a job is one", "request body")
    return job


def _asked(job: bytes | Items) -> dict[str, Any]:
    """The job of a body, or of the items of a query."""
    return _job(job) if isinstance(job, bytes) else job_mapping(job)


def _fit(**arguments: Any) -> Rendered:
    return _json(fit(arguments.pop("model"), arguments.pop("on"), False, **arguments).to_json())


def _estimate(job: bytes | Items) -> Rendered:
    return _json(estimate(_asked(job), allow_files=False).to_json())


def _line(job: bytes) -> Rendered:
    """One of a batch: its answer on one line."""
    return _json(estimate(_job(job), allow_files=False).model_dump_json())


def _limit(job: bytes | Items, field: str, bound: Any, tries: int, on: str | None = None, **used: Any) -> Rendered:
    if used.get("way") is None:
        asked: Any = _asked(job)
    else:
        given = dict(cast(Items, job))
        asked, on = given.pop("model", ""), given.pop("on", None)
        if given:
            raise Contradiction("is a field of a job; beside way there are model, on, context and sequence", next(iter(given)))
    return _json(limit(asked, field, bound, on=on, tries=tries, allow_files=False, **used).to_json())


def _what_if(job: bytes | Items, changes: list[str], on: str | None, form: str) -> Rendered:
    found = what_if(_asked(job), read_changes(changes), on=on, most=MOST_COMBINATIONS, allow_files=False)
    if form == "json":
        return _json(found.to_json())
    return Rendered(200, CSV, found.to_csv().encode()) if form == "csv" else Rendered(200, SVG, picture(found).encode())


def _sweep(job: bytes | Items, changes: list[str], on: str | None, form: str) -> Rendered:
    found = swept(_asked(job), read_changes(changes), on=on, most=MOST_POINTS, allow_files=False)
    return _json(found.to_json()) if form == "json" else Rendered(200, CSV, found.to_csv().encode())


def _which(asked: bytes | str, limits: dict[str, Any]) -> Rendered:
    return _json(which(asked if isinstance(asked, str) else read_job(_job(asked)), allow_files=False, **limits).to_json())


def _plan(job: bytes | Items, on: str | None, wanted: dict[str, Any]) -> Rendered:
    return _json(plan(_asked(job), on=on, most=MOST_SIMULATED, allow_files=False, **wanted).to_json())


def _replicas(asked: bytes | str, rate: float, given: dict[str, Any]) -> Rendered:
    job = asked if isinstance(asked, str) else read_job(_job(asked))
    return _json(replicas(job, rate, allow_files=False, **given).to_json())


def _timeline(job: bytes | Items, on: str | None, form: str, tensors: int) -> Rendered:
    step = record(_asked(job), on, allow_files=False)
    if form == "snapshot":
        return Rendered(200, BINARY, snapshot(step))
    if form == "chrome":
        return _json(chrome(step))
    found = timeline_of(step, tensors)
    return Rendered(200, SVG, svg(found).encode()) if form == "svg" else _json(found.to_json())


def _explain(body: bytes, on: str | None) -> Rendered:
    asked = _job(body)
    if asked.keys() != {"job", "measured"} or not isinstance(asked["job"], dict) or not isinstance(asked["measured"], str):
        raise InvalidJob('is no {"job": {…}, "measured": "the text of a record"}', "request body")
    return _json(explain(asked["job"], asked["measured"], on=on, allow_files=False).to_json())


def _bottleneck(body: bytes, on: str | None) -> Rendered:
    asked = _job(body)
    if asked.keys() != {"job", "profile"} or not isinstance(asked["job"], dict) or not isinstance(asked["profile"], str):
        raise InvalidJob('is no {"job": {…}, "profile": "the text of a profile"}', "request body")
    return _json(bottleneck(asked["job"], asked["profile"], on=on, allow_files=False).to_json())


def _calibrate(body: bytes) -> Rendered:
    return _json(calibrate(decoded(body, "request body"), allow_files=False).to_json())


def _budget(job: bytes | Items, cost: Decimal | None, hours: float | None, gpus: int, top: int) -> Rendered:
    return _json(budget(read_job(_asked(job)), Limits(cost, hours, gpus), rows=top, allow_files=False).to_json())


def _export(job: bytes, to: str) -> Rendered:
    return Rendered(200, TEXT, written(_job(job), to, allow_files=False).encode())


def _import(text: bytes, given: str | None, model: str | None, on: str | None, release: str | None) -> Rendered:
    around = Surroundings(hardware=read_hardware(on).hardware if on else None, release=release)
    return _json(read(decoded(text, "request body"), given, model=model, around=around).model_dump_json())


def _fix(text: bytes, on: str | None, model: str | None, given: str | None, release: str | None) -> Rendered:
    return _json(fix(text, on, model, given, release).to_json())


def _check(body: bytes, on: str | None, model: str | None, form: str) -> Rendered:
    asked = _job(body)
    files = asked.get("files")
    if asked.keys() != {"files"} or not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise InvalidJob('is no {"files": {"train.yaml": "the text of the file"}}', "request body")
    if len(files) > MOST_FILES:
        raise InvalidJob(f"has {len(files)} files, and may have {MOST_FILES}", "request body")
    found = check_texts(files, on, model)
    return _json(found.to_json()) if form == "json" else Rendered(200, TEXT, FORMS[form](found).encode())


def _diff(body: bytes, on: str | None, model: str | None) -> Rendered:
    return _json(diff(_job(body), on, model).to_json())


def _listed(what: str, search: str, *bounds: float) -> Rendered:
    return _json(json.dumps(getattr(listing, what)(search, *bounds), ensure_ascii=False))


def _page(items: Items, view: str = "") -> Rendered:
    status, html = render(items, view)
    return Rendered(status, HTML, html.encode())


def _admission(review: dict[str, Any], enforce: bool) -> Rendered:
    return _json(json.dumps(admitted(review, enforce)))


def _badge(items: Items, form: str) -> Rendered:
    return Rendered(200, JSON if form == "json" else SVG, badge(asked_items(items), form).encode())


def _embed(items: Items) -> Rendered:
    status, html = render_embed(items)
    return Rendered(status, HTML, html.encode())


def _ready() -> Rendered:
    estimate({"model": "gpt2"})
    return _json('{"status":"ready"}')


QUESTIONS: dict[str, Callable[..., Rendered]] = {
    "fit": _fit,
    "estimate": _estimate,
    "line": _line,
    "limit": _limit,
    "what-if": _what_if,
    "sweep": _sweep,
    "which": _which,
    "plan": _plan,
    "replicas": _replicas,
    "timeline": _timeline,
    "explain": _explain,
    "bottleneck": _bottleneck,
    "calibrate": _calibrate,
    "budget": _budget,
    "export": _export,
    "import": _import,
    "ask": lambda job, to: Rendered(200, TEXT, asked(_job(job), to, allow_files=False).encode()),
    "fix": _fix,
    "check": _check,
    "diff": _diff,
    "fitting": lambda on, task, limits: _json(fitting(on, task, **limits).to_json()),
    "models": lambda search, least, most: _listed("models", search, least, inf if most is None else most),
    "gpus": lambda search: _listed("gpus", search),
    "nodes": lambda search: _listed("nodes", search),
    "offers": lambda search: _listed("offers", search),
    "model": lambda name: _json(inspect_model(name, allow_files=False).model_dump_json(indent=2)),
    "gpu": lambda name: _json(accelerator(name).model_dump_json(indent=2)),
    "node": lambda name: _json(node(name).model_dump_json(indent=2)),
    "page": _page,
    "admission": _admission,
    "badge": _badge,
    "embed": _embed,
    "schema": lambda name: Rendered(200, SCHEMA, schema_text(name).encode()),
    "ready": _ready,
}
"""Every kind of question, by its name."""
LARGE = frozenset(
    (
        "fit",
        "page",
        "badge",
        "embed",
        "limit",
        "what-if",
        "sweep",
        "which",
        "plan",
        "replicas",
        "explain",
        "bottleneck",
        "calibrate",
        "fitting",
        "fix",
        "check",
        "diff",
        "budget",
        "import",
    )
)
"""Those that are several questions in one, so that no lane for small ones answers them."""
LAYERS = re.compile(rb'(?<!gpu_)(?:layers?|depth|blocks)"\s*:\s*"?(\d+)')
"""How deep a model is that a job brings along, by what `config.json`s call it. What is read wrongly changes where a question
waits, never its answer."""
MOST_LAYERS = 256
"""Layers of a small question: each takes some 2 ms where the allocator is played with all of them. The deepest model of the
catalogue has 162."""


def lane(kind: str, arguments: dict[str, Any]) -> int:
    """The lane in which a question begins: the one for small ones, or the next, by what is asked and how deep the model is."""
    job = arguments.get("job", b"")
    text = job if isinstance(job, bytes) else "\n".join(f'"{name}": {value}' for name, value in job).encode("utf-8", "replace")
    return int(kind in LARGE or any(len(found) > 9 or int(found) > MOST_LAYERS for found in LAYERS.findall(text)))
