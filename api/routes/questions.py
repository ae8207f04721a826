"""The questions about one job or one model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from estimator.contract.answer import Answer
from estimator.contract.job.part import Count, Length
from estimator.measured.answers import Explanation
from estimator.measured.bottleneck_answer import Profiled
from estimator.measured.calibration_answer import Calibrated
from estimator.planner.by_engine import SERVERS
from estimator.planner.headline_answer import Fit
from estimator.planner.ways import slugs
from estimator.timelines.answers import ChromeTrace, Timeline
from estimator.timelines.timeline import TENSORS

from .. import documentation
from ..asking import ask
from ..batch import answered
from ..documentation import answers
from .parameters import On, Tokens, body, items

router = APIRouter()

MOST_TENSORS = 10_000
"""Tensors that a request may have listed one by one."""

Drawn = Annotated[
    Literal["json", "svg", "chrome", "snapshot"],
    Query(alias="as", description="json, a picture, a trace for Perfetto, or a memory snapshot of torch"),
]
Listed = Annotated[int, Query(ge=0, le=MOST_TENSORS, description="so many tensors are listed, the largest")]


@router.get("/v1/fit", tags=["questions"], response_class=Response, responses=answers(Fit))
async def fit(
    request: Request,
    model: Annotated[str, Query(description="name, alias or size, or the text of a config.json")],
    on: Annotated[str, Query(description="hardware: 2x24GB, rtx-4090, 8xH100, 2 nodes of 8xA100-80GB")],
    context: Annotated[Length | None, Query(description="tokens of a served sequence")] = None,
    concurrency: Annotated[Count, Query(description="served sequences at the same time")] = 1,
    sequence: Annotated[Length | None, Query(description="tokens of a sequence in training")] = None,
    batch: Annotated[Count, Query(description="sequences in training on each GPU at a time")] = 1,
    task: Annotated[str | None, Query(max_length=200, description=f"only the rows of one of {', '.join(slugs())}")] = None,
    tokens: Tokens = None,
    engine: Annotated[
        str | None, Query(max_length=200, description=f"only the rows of serving, by one of {', '.join(SERVERS)}")
    ] = None,
) -> Response:
    """The headline question: which usual ways of using a model fit on some hardware."""
    lengths: dict[str, Any] = {"context": context, "concurrency": concurrency, "sequence": sequence, "batch": batch}
    return await ask(request, "fit", model=model, on=on, **lengths, task=task, tokens=tokens, engine=engine)


@router.get(
    "/v1/estimate",
    tags=["questions"],
    response_class=Response,
    responses=answers(Answer),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def estimate(request: Request) -> Response:
    """One job in full, its fields given by their dotted names: `training.precision=bf16-true`, and `on` for the hardware."""
    return await ask(request, "estimate", job=request.query_params.multi_items())


@router.post(
    "/v1/estimate", tags=["questions"], response_class=Response, responses=answers(Answer), openapi_extra=documentation.JOB_BODY
)
async def estimate_job(request: Request) -> Response:
    """One job in full."""
    return await ask(request, "estimate", job=body(request))


@router.post(
    "/v1/estimates",
    tags=["questions"],
    response_class=StreamingResponse,
    responses=documentation.LINES,
    openapi_extra=documentation.JOBS_BODY,
)
async def estimate_jobs(request: Request) -> Response:
    """Many jobs, one a line; the answers come one a line, in the same order, each as soon as it is there. A line that is
    refused gets its problem, and stops no other."""
    return answered(request, body(request))


@router.get(
    "/v1/timeline",
    tags=["questions"],
    response_class=Response,
    responses=answers(Timeline | ChromeTrace, "image/svg+xml", "application/octet-stream"),
    openapi_extra=documentation.ESTIMATE_QUERY,
)
async def timeline(request: Request, form: Drawn = "json", tensors: Listed = TENSORS) -> Response:
    """Live bytes over a step of a job, its fields given by their dotted names, as for an estimate."""
    return await ask(request, "timeline", job=items(request, "as", "tensors"), on=None, form=form, tensors=tensors)


@router.post(
    "/v1/timeline",
    tags=["questions"],
    response_class=Response,
    responses=answers(Timeline | ChromeTrace, "image/svg+xml", "application/octet-stream"),
    openapi_extra=documentation.JOB_BODY,
)
async def timeline_job(request: Request, on: On = None, form: Drawn = "json", tensors: Listed = TENSORS) -> Response:
    """Live bytes over a step, tensor by tensor."""
    return await ask(request, "timeline", job=body(request), on=on, form=form, tensors=tensors)


@router.post(
    "/v1/explain",
    tags=["questions"],
    response_class=Response,
    responses=answers(Explanation),
    openapi_extra=documentation.EXPLAIN_BODY,
)
async def explain(request: Request, on: On = None) -> Response:
    """What was measured beside what is predicted, and what would explain the difference."""
    return await ask(request, "explain", body=body(request), on=on)


@router.post(
    "/v1/calibrate",
    tags=["questions"],
    response_class=Response,
    responses=answers(Calibrated),
    openapi_extra=documentation.RECORDS_BODY,
)
async def calibrate(request: Request) -> Response:
    """The constants of one's own machine that records of its runs bear out."""
    return await ask(request, "calibrate", body=body(request))


@router.post(
    "/v1/bottleneck",
    tags=["questions"],
    response_class=Response,
    responses=answers(Profiled),
    openapi_extra=documentation.PROFILE_BODY,
)
async def bottleneck(request: Request, on: On = None) -> Response:
    """What bounds a step that was profiled, beside what is predicted, and what makes it faster."""
    return await ask(request, "bottleneck", body=body(request), on=on)
