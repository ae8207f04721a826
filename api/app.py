"""The service: REST under /v1, and one page that works without JavaScript."""

from __future__ import annotations

import json
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles

from api import documentation, problems
from api.limits import BodyLimit
from api.page import render, render_problems
from api.query import job_mapping
from estimator.contract.answer import Answer
from estimator.contract.errors import InvalidJob
from estimator.contract.job import read_job
from estimator.contract.job.part import Count, Length
from estimator.contract.reading import decoded
from estimator.contract.rows import Fitting, GpuRow, ModelRow, NodeRow
from estimator.contract.version import SOFTWARE_VERSION
from estimator.exchange import Surroundings, read, written
from estimator.exchange.found import Found
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.hardware.node import Node, node
from estimator.hardware.parse import read_hardware
from estimator.pipeline.estimation import estimate
from estimator.planner.answers import Budget, Fit, Limit
from estimator.planner.budget import MOST_GPUS, Limits, budget
from estimator.planner.headline import fit
from estimator.planner.limits import TRIES, limit
from estimator.planner.ways import slugs
from estimator.planner.what_if import read_changes, what_if
from estimator.planner.what_if_answer import WhatIf
from estimator.planner.which import which
from estimator.planner.which_answer import Which
from estimator.views import listing
from estimator.views.fitting import ROWS, fitting
from estimator.views.inspection import Card, inspect_model
from estimator.views.picture import picture

MOST_TRIES = 64
"""Values that a request may have estimated one by one."""
MOST_COMBINATIONS = 256
"""Combinations of values that a request may have estimated."""
ANSWER = documentation.answers(Answer)

app = FastAPI(
    title="willitfit",
    version=SOFTWARE_VERSION,
    description=documentation.DESCRIPTION,
    redoc_url=None,
    swagger_ui_oauth2_redirect_url=None,
)
app.add_middleware(BodyLimit)
app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
problems.install(app)
documentation.install(app)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


@app.get("/v1/fit", response_class=Response, responses=documentation.answers(Fit))
def get_fit(
    model: Annotated[str, Query(description="name, alias or size")],
    on: Annotated[str, Query(description="hardware: 2x24GB, rtx-4090, 8xH100, 2 nodes of 8xA100-80GB")],
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
) -> Response:
    """The headline question: which usual ways of using a model fit on some hardware."""
    return _json(fit(model, on, False, context=context, concurrency=concurrency, sequence=sequence, batch=batch).to_json())


@app.get("/v1/estimate", response_class=Response, responses=ANSWER, openapi_extra=documentation.ESTIMATE_QUERY)
def get_estimate(request: Request) -> Response:
    """One job in full, its fields given by their dotted names: `training.precision=bf16-true`, and `on` for the hardware."""
    return _json(estimate(job_mapping(request.query_params.multi_items()), allow_files=False).to_json())


@app.post("/v1/estimate", response_class=Response, responses=ANSWER, openapi_extra=documentation.JOB_BODY)
async def post_estimate(request: Request) -> Response:
    """One job in full."""
    job = _job(await request.body())
    return _json((await run_in_threadpool(estimate, job, allow_files=False)).to_json())


Field = Annotated[str, Query(description="dotted name of a whole number of the job: training.sequence_length, hardware.gpus, …")]
Bound = Annotated[Literal["max", "min"], Query(description="the largest value with which it fits, or the smallest")]
On = Annotated[str | None, Query(description="hardware, in place of the job's own")]
Tries = Annotated[int, Query(ge=1, le=MOST_TRIES, description="where neighbours jump, so many are estimated one by one")]


@app.get("/v1/limit", response_class=Response, responses=documentation.answers(Limit), openapi_extra=documentation.ESTIMATE_QUERY)
def get_limit(request: Request, field: Field, bound: Bound = "max", tries: Tries = TRIES) -> Response:
    """How far a job can go, its fields given by their dotted names, as for an estimate."""
    items = [(name, value) for name, value in request.query_params.multi_items() if name not in ("field", "bound", "tries")]
    return _json(limit(job_mapping(items), field, bound, tries=tries, allow_files=False).to_json())


@app.post("/v1/limit", response_class=Response, responses=documentation.answers(Limit), openapi_extra=documentation.JOB_BODY)
async def post_limit(request: Request, field: Field, bound: Bound = "max", on: On = None, tries: Tries = TRIES) -> Response:
    """How far a job can go: the largest or the smallest value of one of its numbers with which it fits."""
    job = _job(await request.body())
    return _json((await run_in_threadpool(limit, job, field, bound, on=on, tries=tries, allow_files=False)).to_json())


Changed = Annotated[list[str], Query(description="field=values, repeatable: training.sequence_length=1k..128k")]
Form = Annotated[Literal["json", "csv", "svg"], Query(description="the answer, its rows as CSV, or a picture")]
FORMS = {
    **documentation.answers(WhatIf),
    200: {"description": "the answer", "model": WhatIf, "content": {"text/csv": {}, "image/svg+xml": {}}},
}


@app.get("/v1/what-if", response_class=Response, responses=FORMS, openapi_extra=documentation.ESTIMATE_QUERY)
def get_what_if(request: Request, change: Changed, format: Form = "json") -> Response:
    """A job, its fields by their dotted names as for an estimate, with every combination of other values of some of them."""
    items = [(name, value) for name, value in request.query_params.multi_items() if name not in ("change", "format")]
    return _what_if(job_mapping(items), change, None, format)


@app.post("/v1/what-if", response_class=Response, responses=FORMS, openapi_extra=documentation.JOB_BODY)
async def post_what_if(request: Request, change: Changed, on: On = None, format: Form = "json") -> Response:
    """A job with every combination of other values of some of its fields."""
    job = _job(await request.body())
    return await run_in_threadpool(_what_if, job, change, on, format)


def _what_if(job: Any, changes: list[str], on: str | None, form: str) -> Response:
    found = what_if(job, read_changes(changes), on=on, most=MOST_COMBINATIONS, allow_files=False)
    if form == "json":
        return _json(found.to_json())
    text = found.to_csv() if form == "csv" else picture(found)
    return Response(text, media_type="text/csv" if form == "csv" else "image/svg+xml")


Within = Annotated[str | None, Query(description="what the run may take: 24h, 3d")]
Under = Annotated[str | None, Query(description="what it may cost: $50 or 50 EUR the whole run, $2/h an hour")]
Sold = Annotated[str | None, Query(description="only cards sold with so much memory: 24GB, 24GB..80GB")]
Gpus = Annotated[int, Query(ge=1, le=2**17, description="on no more GPUs than these")]
Top = Annotated[int, Query(ge=1, le=1000, description="rows at most")]


@app.get("/v1/which", response_class=Response, responses=documentation.answers(Which))
def get_which(
    model: Annotated[str, Query(description="name, alias or size")],
    task: Annotated[str, Query(description=f"what it is used for: {', '.join(slugs())}")] = "serve",
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
    tokens: Annotated[str | None, Query(description="what a training run processes: 100M, 1e9")] = None,
    within: Within = None,
    under: Under = None,
    memory: Sold = None,
    max_gpus: Gpus = MOST_GPUS,
    top: Top = 20,
) -> Response:
    """Which hardware does it: every card, and how few of it, on which a model is used so; the smallest and the cheapest."""
    limits = {"within": within, "under": under, "memory": memory, "max_gpus": max_gpus, "top": top}
    lengths = {"context": context, "concurrency": concurrency, "sequence": sequence, "batch": batch, "tokens": tokens}
    return _json(which(model, task, **lengths, **limits, allow_files=False).to_json())  # type: ignore[arg-type]


@app.post("/v1/which", response_class=Response, responses=documentation.answers(Which), openapi_extra=documentation.JOB_BODY)
async def post_which(
    request: Request, within: Within = None, under: Under = None, memory: Sold = None, max_gpus: Gpus = MOST_GPUS, top: Top = 20
) -> Response:
    """Which hardware does it: every card, and how few of it, on which a job fits; its own hardware does not count."""
    job = read_job(_job(await request.body()))
    limits = {"within": within, "under": under, "memory": memory, "max_gpus": max_gpus, "top": top}
    return _json((await run_in_threadpool(which, job, **limits, allow_files=False)).to_json())  # type: ignore[arg-type]


@app.post("/v1/budget", response_class=Response, responses=documentation.answers(Budget), openapi_extra=documentation.JOB_BODY)
async def post_budget(
    request: Request,
    max_cost: Annotated[Decimal | None, Query(gt=0, description="in the offers' currency")] = None,
    max_hours: Annotated[float | None, Query(gt=0, description="of the run, by the clock")] = None,
    max_gpus: Annotated[int, Query(ge=1, le=2**17)] = MOST_GPUS,
    top: Annotated[int, Query(ge=1, le=1000, description="rows at most")] = 20,
) -> Response:
    """Every way to rent what a training job needs, cheapest first; `hardware.gpu` and `hardware.rent` of the job narrow them."""
    job = read_job(_job(await request.body()))
    limits = Limits(max_cost, max_hours, max_gpus)
    return _json((await run_in_threadpool(budget, job, limits, rows=top, allow_files=False)).to_json())


def _job(body: bytes) -> Any:
    if not body.strip():
        raise InvalidJob('is empty; send a job as JSON, such as {"model": "llama-2-13b"}', "request body")
    try:
        job = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"is not JSON: {error}", "request body") from None
    if not isinstance(job, dict):
        raise InvalidJob("is no JSON object; a job is one", "request body")
    return job


@app.post(
    "/v1/export", response_class=PlainTextResponse, responses=documentation.answers(None), openapi_extra=documentation.JOB_BODY
)
async def post_export(request: Request, to: str) -> Response:
    """A job's parallelism for the program that runs it: `to` is deepspeed, accelerate, torchtitan or megatron."""
    job = _job(await request.body())
    return PlainTextResponse(await run_in_threadpool(written, job, to, allow_files=False))


@app.post("/v1/import", responses=documentation.answers(None), openapi_extra=documentation.IMPORT_BODY)
async def post_import(
    request: Request,
    given: Annotated[str | None, Query(alias="from", description="whose it is; without it, told by what it says")] = None,
    model: Annotated[str | None, Query(description="the job's model, where the file names none")] = None,
    on: Annotated[str | None, Query(description="hardware, in place of what the file says")] = None,
) -> Found:
    """What a configuration, a command or a script of a framework says, as a job, with what was left out and what filled in."""
    text = decoded(await request.body(), "request body")
    around = Surroundings(hardware=read_hardware(on).hardware if on else None)
    return await run_in_threadpool(read, text, given, model=model, around=around)


@app.get("/v1/models", response_model=list[ModelRow], responses=documentation.answers(None))
def get_models(search: str = "", min: float = 0, max: float | None = None) -> list[dict[str, Any]]:
    """Known models of `min` to `max` parameters whose names have the words of `search` in them, smallest first."""
    return listing.models(search, min, inf if max is None else max)


@app.get("/v1/fitting", response_class=Response, responses=documentation.answers(Fitting))
def get_fitting(
    on: Annotated[str, Query(description="hardware: 24GB, 2x24GB, rtx-4090")],
    task: Annotated[str, Query(description=f"what they are used for: {', '.join(slugs())}")] = "serve",
    search: str = "",
    min: float = 0,
    max: float | None = None,
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
    top: Annotated[int, Query(ge=1, le=100, description="rows after which no more are looked at")] = ROWS,
) -> Response:
    """The known models that fit on some hardware, the newest and largest first; searched as `/v1/models` is."""
    sizes = {"search": search, "least": min, "most": inf if max is None else max, "top": top}
    lengths = {"context": context, "concurrency": concurrency, "sequence": sequence, "batch": batch}
    return _json(fitting(on, task, **sizes, **lengths).to_json())  # type: ignore[arg-type]


@app.get("/v1/models/{name:path}", response_class=Response, responses=documentation.answers(Card))
def get_model(name: str) -> Response:
    """What one model is made of: its parameters by module and by layer, in bytes, and what a token adds to its cache."""
    return _json(inspect_model(name, allow_files=False).model_dump_json(indent=2))


@app.get("/v1/gpus", response_model=list[GpuRow], responses=documentation.answers(None))
def get_gpus(search: str = "") -> list[dict[str, Any]]:
    """Accelerators that have the words of `search` in a name, or as vendor, architecture, form or memory (24GB)."""
    return listing.gpus(search)


@app.get("/v1/gpus/{name}", response_class=Response, responses=documentation.answers(Accelerator))
def get_gpu(name: str) -> Response:
    """Every fact about one accelerator, with its sources."""
    return _json(accelerator(name).model_dump_json(indent=2))


@app.get("/v1/nodes", response_model=list[NodeRow], responses=documentation.answers(None))
def get_nodes(search: str = "") -> list[dict[str, Any]]:
    """Systems and clouds' instances that have the words of `search` in a name, or as provider, accelerator or GPUs (8x)."""
    return listing.nodes(search)


@app.get("/v1/nodes/{name}", response_class=Response, responses=documentation.answers(Node))
def get_node(name: str) -> Response:
    """Every fact about one node, with its sources."""
    return _json(node(name).model_dump_json(indent=2))


@app.get("/livez")
def livez() -> dict[str, str]:
    """The process runs."""
    return {"status": "alive"}


@app.get("/readyz")
def readyz() -> dict[str, str]:
    """The data can be read and a question answered."""
    estimate({"model": "gpt2"})
    return {"status": "ready"}


@app.get("/", response_class=HTMLResponse, include_in_schema=False)
def page(request: Request) -> HTMLResponse:
    """The page: a form, and the answer to the job in its address."""
    status, html = render(list(request.query_params.multi_items()))
    return HTMLResponse(html, status)


@app.get("/problems", response_class=HTMLResponse, include_in_schema=False)
def problem_page() -> HTMLResponse:
    """What each problem's slug means."""
    return HTMLResponse(render_problems())
