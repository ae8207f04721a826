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
from estimator.contract.rows import GpuRow, ModelRow, NodeRow
from estimator.contract.version import SOFTWARE_VERSION
from estimator.exchange import Surroundings, read, written
from estimator.exchange.ask import TO, asked
from estimator.exchange.found import Found
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.hardware.node import Node, node
from estimator.hardware.parse import read_hardware
from estimator.pipeline.estimation import estimate
from estimator.planner.answers import Budget, Differences, Fit, Fixes, Limit
from estimator.planner.budget import MOST_GPUS, Limits, budget
from estimator.planner.diff import diff
from estimator.planner.fix import fix
from estimator.planner.headline import fit
from estimator.planner.limits import TRIES, limit
from estimator.views import listing
from estimator.views.inspection import Card, inspect_model

MOST_TRIES = 64
"""Values that a request may have estimated one by one."""
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


@app.post(
    "/v1/ask", response_class=PlainTextResponse, responses=documentation.answers(None), openapi_extra=documentation.JOB_BODY
)
async def post_ask(request: Request, to: Annotated[str, Query(alias="as", description=", ".join(TO))]) -> Response:
    """The resources to request for a job, as text for a scheduler or a platform."""
    job = _job(await request.body())
    return PlainTextResponse(await run_in_threadpool(asked, job, to, allow_files=False))


From = Annotated[str | None, Query(alias="from", description="whose it is; without it, told by what it says")]
OfModel = Annotated[str | None, Query(description="the job's model, where the file names none")]


@app.post("/v1/fix", response_class=Response, responses=documentation.answers(Fixes), openapi_extra=documentation.IMPORT_BODY)
async def post_fix(request: Request, on: On = None, model: OfModel = None, given: From = None) -> Response:
    """The smallest edits that make a file's job fit, in the file's own keys, each fix with a patch; nothing is written."""
    body = await request.body()
    return _json((await run_in_threadpool(fix, body, on, model, given)).to_json())


@app.post(
    "/v1/diff", response_class=Response, responses=documentation.answers(Differences), openapi_extra=documentation.DIFF_BODY
)
async def post_diff(request: Request, on: On = None, model: OfModel = None) -> Response:
    """What differs between two jobs, or the texts of two files: settings after defaults, memory by part, seconds by part."""
    two = _job(await request.body())
    return _json((await run_in_threadpool(diff, two, on, model)).to_json())


@app.post("/v1/import", responses=documentation.answers(None), openapi_extra=documentation.IMPORT_BODY)
async def post_import(
    request: Request,
    given: From = None,
    model: OfModel = None,
    on: On = None,
) -> Found:
    """What a configuration, a command or a script of a framework says, as a job, with what was left out and what filled in."""
    text = decoded(await request.body(), "request body")
    around = Surroundings(hardware=read_hardware(on).hardware if on else None)
    return await run_in_threadpool(read, text, given, model=model, around=around)


@app.get("/v1/models", response_model=list[ModelRow], responses=documentation.answers(None))
def get_models(search: str = "", min: float = 0, max: float | None = None) -> list[dict[str, Any]]:
    """Known models of `min` to `max` parameters whose names have the words of `search` in them, smallest first."""
    return listing.models(search, min, inf if max is None else max)


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
