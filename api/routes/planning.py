"""The route that finds ways to run a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from estimator.planner.budget import MOST_GPUS
from estimator.planner.plan_answer import Plan

from .. import documentation
from ..asking import ask
from ..documentation import answers
from .parameters import Gpus, Sold, Under, Within, body

TOP = 6
"""Ways that are told in full, unless others are asked for."""
router = APIRouter()
Settings = Annotated[list[Annotated[str, Query(max_length=200)]], Query(max_length=16)]


@router.post(
    "/v1/plan", tags=["questions"], response_class=Response, responses=answers(Plan), openapi_extra=documentation.JOB_BODY
)
async def plan(
    request: Request,
    on: Annotated[str | None, Query(description="hardware, in place of the job's own; any: what can be rented")] = None,
    within: Within = None,
    under: Under = None,
    allow: Settings = [],  # noqa: B006 (FastAPI copies it)
    deny: Settings = [],  # noqa: B006
    keep_global_batch: bool = False,
    memory: Sold = None,
    max_gpus: Gpus = MOST_GPUS,
    top: Annotated[int, Query(ge=1, le=20, description="ways at most")] = TOP,
) -> Response:
    """The ways to train that none beats in money, time and memory left, and why what is near them is worse. `allow` and `deny`
    are fields, with or without values, and may be repeated."""
    limits = {"within": within, "under": under, "allow": allow, "deny": deny, "keep_global_batch": keep_global_batch}
    wanted = {**limits, "memory": memory, "max_gpus": max_gpus, "top": top}
    return await ask(request, "plan", job=body(request), on=on, wanted=wanted)
