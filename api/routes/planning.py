"""The questions that look for ways to run a job, or copies that bear a load."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from estimator.planner.budget import MOST_GPUS
from estimator.planner.plan_answer import Plan
from estimator.planner.replicas_answer import Replicas

from .. import documentation
from ..asking import ask
from ..documentation import answers
from .parameters import Gpus, Sold, Under, Within, body, items

TOP = 6
"""Ways that are told in full, unless others are asked for."""
router = APIRouter()
Settings = Annotated[list[Annotated[str, Query(max_length=200)]], Query(max_length=16)]


OnAny = Annotated[str | None, Query(max_length=200, description="hardware, in place of the job's own; any: what can be rented")]
Allowed = Annotated[Settings, Query(description="may change, though it changes what is computed; repeatable")]
Denied = Annotated[Settings, Query(description="fields, or values, that are left as they are; repeatable")]
Kept = Annotated[bool, Query(description="a step has exactly the job's sequences")]
Ways = Annotated[int, Query(ge=1, le=20, description="ways at most")]


@router.get(
    "/v1/plan", tags=["questions"], response_class=Response, responses=answers(Plan), openapi_extra=documentation.ESTIMATE_QUERY
)
async def plan(
    request: Request,
    on: OnAny = None,
    within: Within = None,
    under: Under = None,
    allow: Allowed = [],  # noqa: B006 (FastAPI copies it)
    deny: Denied = [],  # noqa: B006
    keep_global_batch: Kept = False,
    memory: Sold = None,
    max_gpus: Gpus = MOST_GPUS,
    top: Ways = TOP,
) -> Response:
    """The best ways to train a job, its fields given by their dotted names, as for an estimate."""
    limits = {"within": within, "under": under, "allow": allow, "deny": deny, "keep_global_batch": keep_global_batch}
    wanted = {**limits, "memory": memory, "max_gpus": max_gpus, "top": top}
    return await ask(request, "plan", job=items(request, "on", *wanted), on=on, wanted=wanted)


@router.post(
    "/v1/plan", tags=["questions"], response_class=Response, responses=answers(Plan), openapi_extra=documentation.JOB_BODY
)
async def plan_job(
    request: Request,
    on: OnAny = None,
    within: Within = None,
    under: Under = None,
    allow: Allowed = [],  # noqa: B006
    deny: Denied = [],  # noqa: B006
    keep_global_batch: Kept = False,
    memory: Sold = None,
    max_gpus: Gpus = MOST_GPUS,
    top: Ways = TOP,
) -> Response:
    """The ways to train that none beats in money, time and memory left, and why what is near them is worse."""
    limits = {"within": within, "under": under, "allow": allow, "deny": deny, "keep_global_batch": keep_global_batch}
    wanted = {**limits, "memory": memory, "max_gpus": max_gpus, "top": top}
    return await ask(request, "plan", job=body(request), on=on, wanted=wanted)


Rate = Annotated[float, Query(gt=0, le=10**6, description="requests that come in a second")]
First = Annotated[float | None, Query(gt=0, le=10**6, description="seconds to the first token at most, in the mean")]
Each = Annotated[float | None, Query(gt=0, le=10**6, description="seconds for each token after it at most")]
Tokens = Annotated[int | None, Query(ge=1, le=2**24, description="tokens of each, in place of 1024 in and 256 out")]
There = Annotated[str | None, Query(max_length=200, description="no more GPUs than these, in place of every card: 8xH100")]
Top = Annotated[int, Query(ge=1, le=1000, description="rows at most")]


@router.get("/v1/replicas", tags=["questions"], response_class=Response, responses=answers(Replicas))
async def replicas(
    request: Request,
    model: Annotated[str, Query(description="name, alias or size, or the text of a config.json")],
    requests: Rate,
    prompt: Tokens = None,
    output: Tokens = None,
    ttft: First = None,
    tpot: Each = None,
    on: There = None,
    top: Top = 20,
) -> Response:
    """How many copies of a served model bear a load, on every card that can be rented or on some hardware; the cheapest first."""
    given = {"prompt": prompt, "output": output, "ttft": ttft, "tpot": tpot, "on": on, "top": top}
    return await ask(request, "replicas", asked=model, rate=requests, given=given)


@router.post(
    "/v1/replicas",
    tags=["questions"],
    response_class=Response,
    responses=answers(Replicas),
    openapi_extra=documentation.JOB_BODY,
)
async def replicas_job(
    request: Request, requests: Rate, ttft: First = None, tpot: Each = None, on: There = None, top: Top = 20
) -> Response:
    """How many copies of a job that serves bear a load; its own hardware does not count."""
    given = {"ttft": ttft, "tpot": tpot, "on": on, "top": top}
    return await ask(request, "replicas", asked=body(request), rate=requests, given=given)
