"""The service: REST under /v1, and one page that works without JavaScript."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from estimator.contract.answer import Answer
from estimator.contract.job.part import Count, Length
from estimator.contract.rows import Fitting, GpuRow, ModelRow, NodeRow, OfferRow
from estimator.contract.version import SOFTWARE_VERSION
from estimator.exchange.ask import TO
from estimator.exchange.found import Found
from estimator.hardware.accelerator import Accelerator
from estimator.hardware.node import Node
from estimator.measured.answers import Explanation
from estimator.planner.answers import Budget, Differences, Fit, Fixes, Limit
from estimator.planner.budget import MOST_GPUS
from estimator.planner.limits import TRIES
from estimator.planner.ways import slugs
from estimator.planner.what_if_answer import WhatIf
from estimator.planner.which_answer import Which
from estimator.timelines.answers import Timeline
from estimator.timelines.timeline import TENSORS
from estimator.views.fitting import ROWS
from estimator.views.inspection import Card

from . import documentation, problems
from .asking import LASTING, ask
from .batch import answered
from .documentation import NOTHING, answers
from .lanes import NICE, Work
from .limits import BODY, Limits
from .observed import REGISTRY, WAITING, WORKING, Observed
from .page import render_problems
from .remembered import Memory
from .settings import settings

MOST_TRIES = 64
"""Values that a request may have estimated one by one."""
MOST_TENSORS = 10_000
"""Tensors that a request may have listed one by one."""


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Worker processes for as long as the service runs; without any, what is asked is worked out in threads."""
    if not settings().workers:
        yield
        return
    app.state.work = work = Work(settings())
    for name, lane in zip(NICE, work.lanes, strict=True):
        WAITING.labels(name).set_function(partial(getattr, lane, "waiting"))
        WORKING.labels(name).set_function(partial(getattr, lane, "busy"))
    try:
        await work.start()
        yield
    finally:
        app.state.work = None
        await work.stop()


app = FastAPI(
    title="willitfit",
    version=SOFTWARE_VERSION,
    description=documentation.DESCRIPTION,
    openapi_tags=documentation.TAGS,
    generate_unique_id_function=lambda route: route.name,
    openapi_url=None,
    docs_url=None,
    redoc_url=None,
    lifespan=_lifespan,
)
app.add_middleware(Memory)
app.add_middleware(Limits)
if settings().cors != "none":
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[origin.strip() for origin in settings().cors.split(",")],
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["Content-Type", "If-None-Match", "X-Request-ID"],
        expose_headers=["ETag", "Retry-After", "X-Request-ID"],
        max_age=86400,
    )
app.add_middleware(Observed)
app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
problems.install(app)
documentation.install(app)

Words = Annotated[str, Query(max_length=200, description="words of a name")]
Size = Annotated[float, Query(ge=0, le=1e15, allow_inf_nan=False)]


@app.get("/v1/fit", tags=["questions"], response_class=Response, responses=answers(Fit))
async def fit(
    request: Request,
    model: Annotated[str, Query(description="name, alias or size")],
    on: Annotated[str, Query(description="hardware: 2x24GB, rtx-4090, 8xH100, 2 nodes of 8xA100-80GB")],
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
) -> Response:
    """The headline question: which usual ways of using a model fit on some hardware."""
    return await ask(request, "fit", model=model, on=on, context=context, concurrency=concurrency, sequence=sequence, batch=batch)


@app.get(
    "/v1/estimate",
    tags=["questions"],
    response_class=Response,
    responses=answers(Answer),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def estimate(request: Request) -> Response:
    """One job in full, its fields given by their dotted names: `training.precision=bf16-true`, and `on` for the hardware."""
    return await ask(request, "estimate", job=request.query_params.multi_items())


@app.post(
    "/v1/estimate", tags=["questions"], response_class=Response, responses=answers(Answer), openapi_extra=documentation.JOB_BODY
)
async def estimate_job(request: Request) -> Response:
    """One job in full."""
    return await ask(request, "estimate", job=_body(request))


@app.post(
    "/v1/estimates",
    tags=["questions"],
    response_class=StreamingResponse,
    responses=documentation.LINES,
    openapi_extra=documentation.JOBS_BODY,
)
async def estimate_jobs(request: Request) -> Response:
    """Many jobs, one a line; the answers come one a line, in the same order, each as soon as it is there. A line that is
    refused gets its problem, and stops no other."""
    return answered(request, _body(request))


Field = Annotated[
    str, Query(max_length=200, description="dotted name of a whole number of the job: training.sequence_length, hardware.gpus, …")
]
Bound = Annotated[Literal["max", "min"], Query(description="the largest value with which it fits, or the smallest")]
On = Annotated[str | None, Query(description="hardware, in place of the job's own")]
Tries = Annotated[int, Query(ge=1, le=MOST_TRIES, description="where neighbours jump, so many are estimated one by one")]


@app.get(
    "/v1/limit",
    tags=["questions"],
    response_class=Response,
    responses=answers(Limit),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def limit(request: Request, field: Field, bound: Bound = "max", tries: Tries = TRIES) -> Response:
    """How far a job can go, its fields given by their dotted names, as for an estimate."""
    return await ask(
        request, "limit", job=_items(request, "field", "bound", "tries"), field=field, bound=bound, on=None, tries=tries
    )


@app.post(
    "/v1/limit", tags=["questions"], response_class=Response, responses=answers(Limit), openapi_extra=documentation.JOB_BODY
)
async def limit_job(request: Request, field: Field, bound: Bound = "max", on: On = None, tries: Tries = TRIES) -> Response:
    """How far a job can go: the largest or the smallest value of one of its numbers with which it fits."""
    return await ask(request, "limit", job=_body(request), field=field, bound=bound, on=on, tries=tries)


Changed = Annotated[
    list[Annotated[str, Query(max_length=2000)]],
    Query(max_length=16, description="field=values, repeatable: training.sequence_length=1k..128k"),
]
Form = Annotated[Literal["json", "csv", "svg"], Query(description="the answer, its rows as CSV, or a picture")]


@app.get(
    "/v1/what-if",
    tags=["questions"],
    response_class=Response,
    responses=answers(WhatIf, "text/csv", "image/svg+xml"),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def what_if(request: Request, change: Changed, format: Form = "json") -> Response:
    """A job, its fields by their dotted names as for an estimate, with every combination of other values of some of them."""
    return await ask(request, "what-if", job=_items(request, "change", "format"), changes=change, on=None, form=format)


@app.post(
    "/v1/what-if",
    tags=["questions"],
    response_class=Response,
    responses=answers(WhatIf, "text/csv", "image/svg+xml"),
    openapi_extra=documentation.JOB_BODY,
)
async def what_if_job(request: Request, change: Changed, on: On = None, format: Form = "json") -> Response:
    """A job with every combination of other values of some of its fields."""
    return await ask(request, "what-if", job=_body(request), changes=change, on=on, form=format)


Within = Annotated[str | None, Query(max_length=200, description="what the run may take: 24h, 3d")]
Under = Annotated[str | None, Query(max_length=200, description="what it may cost: $50 or 50 EUR the whole run, $2/h an hour")]
Sold = Annotated[str | None, Query(max_length=200, description="only cards sold with so much memory: 24GB, 24GB..80GB")]
Gpus = Annotated[int, Query(ge=1, le=2**17, description="on no more GPUs than these")]
Top = Annotated[int, Query(ge=1, le=1000, description="rows at most")]


@app.get("/v1/which", tags=["questions"], response_class=Response, responses=answers(Which))
async def which(
    request: Request,
    model: Annotated[str, Query(description="name, alias or size")],
    task: Annotated[str, Query(max_length=200, description=f"what it is used for: {', '.join(slugs())}")] = "serve",
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
    tokens: Annotated[str | None, Query(max_length=200, description="what a training run processes: 100M, 1e9")] = None,
    within: Within = None,
    under: Under = None,
    memory: Sold = None,
    max_gpus: Gpus = MOST_GPUS,
    top: Top = 20,
) -> Response:
    """Which hardware does it: every card, and how few of it, on which a model is used so; the smallest and the cheapest."""
    lengths = {"context": context, "concurrency": concurrency, "sequence": sequence, "batch": batch, "tokens": tokens}
    limits = {"within": within, "under": under, "memory": memory, "max_gpus": max_gpus, "top": top}
    return await ask(request, "which", asked=model, limits={"task": task, **lengths, **limits})


@app.post(
    "/v1/which", tags=["questions"], response_class=Response, responses=answers(Which), openapi_extra=documentation.JOB_BODY
)
async def which_job(
    request: Request, within: Within = None, under: Under = None, memory: Sold = None, max_gpus: Gpus = MOST_GPUS, top: Top = 20
) -> Response:
    """Which hardware does it: every card, and how few of it, on which a job fits; its own hardware does not count."""
    limits = {"within": within, "under": under, "memory": memory, "max_gpus": max_gpus, "top": top}
    return await ask(request, "which", asked=_body(request), limits=limits)


Drawn = Annotated[
    Literal["json", "svg", "chrome", "snapshot"],
    Query(alias="as", description="json, a picture, a trace for Perfetto, or a memory snapshot of torch"),
]
Listed = Annotated[int, Query(ge=0, le=MOST_TENSORS, description="so many tensors are listed, the largest")]


@app.get(
    "/v1/timeline",
    tags=["questions"],
    response_class=Response,
    responses=answers(Timeline, "image/svg+xml", "application/octet-stream"),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def timeline(request: Request, form: Drawn = "json", tensors: Listed = TENSORS) -> Response:
    """Live bytes over a step of a job, its fields given by their dotted names, as for an estimate."""
    return await ask(request, "timeline", job=_items(request, "as", "tensors"), on=None, form=form, tensors=tensors)


@app.post(
    "/v1/timeline",
    tags=["questions"],
    response_class=Response,
    responses=answers(Timeline, "image/svg+xml", "application/octet-stream"),
    openapi_extra=documentation.JOB_BODY,
)
async def timeline_job(request: Request, on: On = None, form: Drawn = "json", tensors: Listed = TENSORS) -> Response:
    """Live bytes over a step, tensor by tensor."""
    return await ask(request, "timeline", job=_body(request), on=on, form=form, tensors=tensors)


@app.post(
    "/v1/explain",
    tags=["questions"],
    response_class=Response,
    responses=answers(Explanation),
    openapi_extra=documentation.EXPLAIN_BODY,
)
async def explain(request: Request, on: On = None) -> Response:
    """What was measured beside what is predicted, and what would explain the difference."""
    return await ask(request, "explain", body=_body(request), on=on)


@app.post(
    "/v1/budget", tags=["questions"], response_class=Response, responses=answers(Budget), openapi_extra=documentation.JOB_BODY
)
async def budget(
    request: Request,
    max_cost: Annotated[
        Decimal | None, Query(gt=0, le=10**12, max_digits=24, allow_inf_nan=False, description="in the offers' currency")
    ] = None,
    max_hours: Annotated[float | None, Query(gt=0, le=10**9, allow_inf_nan=False, description="of the run, by the clock")] = None,
    max_gpus: Annotated[int, Query(ge=1, le=2**17)] = MOST_GPUS,
    top: Annotated[int, Query(ge=1, le=1000, description="rows at most")] = 20,
) -> Response:
    """Every way to rent what a training job needs, cheapest first; `hardware.gpu` and `hardware.rent` of the job narrow them."""
    return await ask(request, "budget", job=_body(request), cost=max_cost, hours=max_hours, gpus=max_gpus, top=top)


@app.post(
    "/v1/export",
    tags=["exchange"],
    response_class=PlainTextResponse,
    responses=answers(None),
    openapi_extra=documentation.JOB_BODY,
)
async def export(request: Request, to: Annotated[str, Query(max_length=200)]) -> Response:
    """A job's parallelism for the program that runs it: `to` is deepspeed, accelerate, torchtitan or megatron."""
    return await ask(request, "export", job=_body(request), to=to)


@app.post(
    "/v1/ask",
    tags=["exchange"],
    response_class=PlainTextResponse,
    responses=answers(None),
    openapi_extra=documentation.JOB_BODY,
)
async def request_resources(
    request: Request, to: Annotated[str, Query(alias="as", max_length=200, description=", ".join(TO))]
) -> Response:
    """The resources to request for a job, as text for a scheduler or a platform."""
    return await ask(request, "ask", job=_body(request), to=to)


From = Annotated[str | None, Query(alias="from", max_length=200, description="whose it is; without it, told by what it says")]
OfModel = Annotated[str | None, Query(description="the job's model, where the file names none")]


@app.post(
    "/v1/fix", tags=["exchange"], response_class=Response, responses=answers(Fixes), openapi_extra=documentation.IMPORT_BODY
)
async def fix(request: Request, on: On = None, model: OfModel = None, given: From = None) -> Response:
    """The smallest edits that make a file's job fit, in the file's own keys, each fix with a patch; nothing is written."""
    return await ask(request, "fix", text=_body(request), on=on, model=model, given=given)


@app.post(
    "/v1/diff", tags=["exchange"], response_class=Response, responses=answers(Differences), openapi_extra=documentation.DIFF_BODY
)
async def diff(request: Request, on: On = None, model: OfModel = None) -> Response:
    """What differs between two jobs, or the texts of two files: settings after defaults, memory by part, seconds by part."""
    return await ask(request, "diff", body=_body(request), on=on, model=model)


@app.post(
    "/v1/import",
    tags=["exchange"],
    response_model=Found,
    response_class=Response,
    responses=answers(Found),
    openapi_extra=documentation.IMPORT_BODY,
)
async def import_(request: Request, given: From = None, model: OfModel = None, on: On = None) -> Response:
    """What a configuration, a command or a script of a framework says, as a job, with what was left out and what filled in."""
    return await ask(request, "import", text=_body(request), given=given, model=model, on=on)


@app.get("/v1/models", tags=["facts"], response_class=Response, responses=answers(list[ModelRow]))
async def models(request: Request, search: Words = "", min: Size = 0, max: Size | None = None) -> Response:
    """Known models of `min` to `max` parameters whose names have the words of `search` in them, smallest first."""
    return await ask(request, "models", search=search, least=min, most=max)


@app.get("/v1/fitting", tags=["questions"], response_class=Response, responses=answers(Fitting))
async def fitting(
    request: Request,
    on: Annotated[str, Query(description="hardware: 24GB, 2x24GB, rtx-4090")],
    task: Annotated[str, Query(max_length=200, description=f"what they are used for: {', '.join(slugs())}")] = "serve",
    search: Words = "",
    min: Size = 0,
    max: Size | None = None,
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
    top: Annotated[int, Query(ge=1, le=100, description="rows after which no more are looked at")] = ROWS,
) -> Response:
    """The known models that fit on some hardware, the newest and largest first; searched as `/v1/models` is."""
    lengths = {"context": context, "concurrency": concurrency, "sequence": sequence, "batch": batch}
    limits = {"search": search, "least": min, "most": inf if max is None else max, "top": top, **lengths}
    return await ask(request, "fitting", on=on, task=task, limits=limits)


@app.get("/v1/models/{name:path}", tags=["facts"], response_class=Response, responses=answers(Card))
async def model(request: Request, name: str) -> Response:
    """What one model is made of: its parameters by module and by layer, in bytes, and what a token adds to its cache."""
    return await ask(request, "model", name=name)


@app.get("/v1/gpus", tags=["facts"], response_class=Response, responses=answers(list[GpuRow]))
async def gpus(request: Request, search: Words = "") -> Response:
    """Accelerators that have the words of `search` in a name, or as vendor, architecture, form or memory (24GB)."""
    return await ask(request, "gpus", search=search)


@app.get("/v1/gpus/{name}", tags=["facts"], response_class=Response, responses=answers(Accelerator))
async def gpu(request: Request, name: str) -> Response:
    """Every fact about one accelerator, with its sources."""
    return await ask(request, "gpu", name=name)


@app.get("/v1/nodes", tags=["facts"], response_class=Response, responses=answers(list[NodeRow]))
async def nodes(request: Request, search: Words = "") -> Response:
    """Systems and clouds' instances that have the words of `search` in a name, or as provider, accelerator or GPUs (8x)."""
    return await ask(request, "nodes", search=search)


@app.get("/v1/nodes/{name}", tags=["facts"], response_class=Response, responses=answers(Node))
async def node(request: Request, name: str) -> Response:
    """Every fact about one node, with its sources."""
    return await ask(request, "node", name=name)


@app.get("/v1/prices", tags=["facts"], response_class=Response, responses=answers(list[OfferRow]))
async def prices(request: Request, search: Words = "") -> Response:
    """Offers that have every word of `search`, cheapest per GPU-hour first."""
    return await ask(request, "offers", search=search)


@app.get("/livez", tags=["health"])
async def livez() -> dict[str, str]:
    """The process runs."""
    return {"status": "alive"}


@app.get("/readyz", tags=["health"], response_class=Response, responses=NOTHING)
async def readyz(request: Request) -> Response:
    """The data can be read and a question answered."""
    return await ask(request, "ready", lasting=False)


@app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
async def metrics() -> Response:
    """Counts of requests, their seconds and what waits, in Prometheus's text format."""
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


@app.get("/", response_class=HTMLResponse, include_in_schema=False)
async def page(request: Request) -> Response:
    """The page: a form, and the answer to the job in its address."""
    return await ask(request, "page", items=request.query_params.multi_items())


@app.get("/problems", response_class=HTMLResponse, include_in_schema=False)
async def problem_page() -> Response:
    """What each problem's slug means."""
    return HTMLResponse(render_problems(), headers={"Cache-Control": LASTING})


@app.get("/openapi.json", response_class=Response, include_in_schema=False)
async def document() -> Response:
    """The description for programs."""
    return Response(
        await asyncio.to_thread(documentation.text, app), media_type="application/json", headers={"Cache-Control": LASTING}
    )


@app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs() -> Response:
    """The description for people: every route, its parameters and examples."""
    return HTMLResponse(await asyncio.to_thread(documentation.page, app), headers={"Cache-Control": LASTING})


def _items(request: Request, *others: str) -> list[tuple[str, str]]:
    """A job's fields in the address, without what else the question takes."""
    return [(name, value) for name, value in request.query_params.multi_items() if name not in others]


def _body(request: Request) -> bytes:
    found: bytes = request.scope[BODY]
    return found
