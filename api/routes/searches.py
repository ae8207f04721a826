"""The questions asked backwards and across: limits, other values, hardware, models, offers."""

from __future__ import annotations

from decimal import Decimal
from math import inf
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from estimator.contract.job.part import Count, Length
from estimator.contract.rows import Fitting
from estimator.planner.answers import Budget, Limit
from estimator.planner.budget import MOST_GPUS
from estimator.planner.limits import TRIES
from estimator.planner.swept import Swept
from estimator.planner.ways import slugs
from estimator.planner.what_if_answer import WhatIf
from estimator.planner.which_answer import Which
from estimator.views.fitting import ROWS

from .. import documentation
from ..asking import ask
from ..documentation import answers
from .parameters import Gpus, On, Size, Sold, Tokens, Under, Within, Words, body, items

router = APIRouter()

MOST_TRIES = 64
"""Values that a request may have estimated one by one."""

Field = Annotated[
    str, Query(max_length=200, description="dotted name of a whole number of the job: training.sequence_length, hardware.gpus, …")
]
Bound = Annotated[Literal["max", "min"], Query(description="the largest value with which it fits, or the smallest")]
Tries = Annotated[int, Query(ge=1, le=MOST_TRIES, description="how many values to estimate in full where the allocator decides")]
Changed = Annotated[
    list[Annotated[str, Query(max_length=2000)]],
    Query(max_length=16, description="field=values, repeatable: training.sequence_length=1k..128k"),
]
Form = Annotated[Literal["json", "csv", "svg"], Query(description="the answer, its rows as CSV, or a picture")]
Table = Annotated[Literal["json", "csv"], Query(description="the answer in columns, or its rows as CSV")]
Top = Annotated[int, Query(ge=1, le=1000, description="rows at most")]


@router.get(
    "/v1/limit",
    tags=["questions"],
    response_class=Response,
    responses=answers(Limit),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def limit(
    request: Request,
    field: Field,
    bound: Bound = "max",
    tries: Tries = TRIES,
    way: Annotated[
        str | None, Query(max_length=200, description=f"a usual way of using model on all of on: {', '.join(slugs())}")
    ] = None,
    context: Annotated[Length | None, Query(description="with way, tokens of a served sequence")] = None,
    sequence: Annotated[Length | None, Query(description="with way, tokens of a sequence in training")] = None,
) -> Response:
    """How far a job can go, its fields given by their dotted names, as for an estimate; or, with `way`, a model used so."""
    job = items(request, "field", "bound", "tries", "way", "context", "sequence")
    lengths: dict[str, Any] = {"context": context, "sequence": sequence}
    return await ask(request, "limit", job=job, field=field, bound=bound, tries=tries, way=way, **lengths)


@router.post(
    "/v1/limit", tags=["questions"], response_class=Response, responses=answers(Limit), openapi_extra=documentation.JOB_BODY
)
async def limit_job(request: Request, field: Field, bound: Bound = "max", on: On = None, tries: Tries = TRIES) -> Response:
    """How far a job can go: the largest or the smallest value of one of its numbers with which it fits."""
    return await ask(request, "limit", job=body(request), field=field, bound=bound, on=on, tries=tries)


@router.get(
    "/v1/what-if",
    tags=["questions"],
    response_class=Response,
    responses=answers(WhatIf, "text/csv", "image/svg+xml"),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def what_if(request: Request, change: Changed, format: Form = "json") -> Response:
    """A job, its fields by their dotted names as for an estimate, with every combination of other values of some of them."""
    return await ask(request, "what-if", job=items(request, "change", "format"), changes=change, on=None, form=format)


@router.post(
    "/v1/what-if",
    tags=["questions"],
    response_class=Response,
    responses=answers(WhatIf, "text/csv", "image/svg+xml"),
    openapi_extra=documentation.JOB_BODY,
)
async def what_if_job(request: Request, change: Changed, on: On = None, format: Form = "json") -> Response:
    """A job with every combination of other values of some of its fields."""
    return await ask(request, "what-if", job=body(request), changes=change, on=on, form=format)


@router.get(
    "/v1/sweep",
    tags=["questions"],
    response_class=Response,
    responses=answers(Swept, "text/csv"),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def sweep(request: Request, change: Changed, format: Table = "json") -> Response:
    """What a job, its fields by their dotted names as for an estimate, takes with thousands of combinations of other values."""
    return await ask(request, "sweep", job=items(request, "change", "format"), changes=change, on=None, form=format)


@router.post(
    "/v1/sweep",
    tags=["questions"],
    response_class=Response,
    responses=answers(Swept, "text/csv"),
    openapi_extra=documentation.JOB_BODY,
)
async def sweep_job(request: Request, change: Changed, on: On = None, format: Table = "json") -> Response:
    """What a job takes with thousands of combinations of other values of its fields, and which of them fit."""
    return await ask(request, "sweep", job=body(request), changes=change, on=on, form=format)


@router.get("/v1/which", tags=["questions"], response_class=Response, responses=answers(Which))
async def which(
    request: Request,
    model: Annotated[str, Query(description="name, alias or size, or the text of a config.json")],
    task: Annotated[str, Query(max_length=200, description=f"what it is used for: {', '.join(slugs())}")] = "serve",
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
    tokens: Tokens = None,
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


@router.post(
    "/v1/which", tags=["questions"], response_class=Response, responses=answers(Which), openapi_extra=documentation.JOB_BODY
)
async def which_job(
    request: Request, within: Within = None, under: Under = None, memory: Sold = None, max_gpus: Gpus = MOST_GPUS, top: Top = 20
) -> Response:
    """Which hardware does it: every card, and how few of it, on which a job fits; its own hardware does not count."""
    limits = {"within": within, "under": under, "memory": memory, "max_gpus": max_gpus, "top": top}
    return await ask(request, "which", asked=body(request), limits=limits)


@router.get("/v1/fitting", tags=["questions"], response_class=Response, responses=answers(Fitting))
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


Money = Annotated[
    Decimal | None, Query(gt=0, le=10**12, max_digits=24, allow_inf_nan=False, description="in the offers' currency")
]
Hours = Annotated[float | None, Query(gt=0, le=10**9, allow_inf_nan=False, description="of the run, by the clock")]


@router.get(
    "/v1/budget",
    tags=["questions"],
    response_class=Response,
    responses=answers(Budget),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def budget(
    request: Request, max_cost: Money = None, max_hours: Hours = None, max_gpus: Gpus = MOST_GPUS, top: Top = 20
) -> Response:
    """Every way to rent what a job needs, its fields given by their dotted names, as for an estimate; cheapest first."""
    job = items(request, "max_cost", "max_hours", "max_gpus", "top")
    return await ask(request, "budget", job=job, cost=max_cost, hours=max_hours, gpus=max_gpus, top=top)


@router.post(
    "/v1/budget", tags=["questions"], response_class=Response, responses=answers(Budget), openapi_extra=documentation.JOB_BODY
)
async def budget_job(
    request: Request, max_cost: Money = None, max_hours: Hours = None, max_gpus: Gpus = MOST_GPUS, top: Top = 20
) -> Response:
    """Every way to rent what a training job needs, cheapest first; `hardware.gpu` and `hardware.rent` of the job narrow them."""
    return await ask(request, "budget", job=body(request), cost=max_cost, hours=max_hours, gpus=max_gpus, top=top)
