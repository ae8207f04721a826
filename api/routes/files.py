"""Files of other programs: read, written, mended, compared."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from estimator.exchange.ask import TO
from estimator.exchange.found import Found
from estimator.planner.answers import Differences, Fixes
from estimator.planner.check import Checked

from .. import documentation
from ..asking import ask
from ..documentation import answers
from .parameters import On, body

router = APIRouter()

From = Annotated[str | None, Query(alias="from", max_length=200, description="whose it is; without it, told by what it says")]
OfModel = Annotated[str | None, Query(description="the job's model, where the file names none")]


Release = Annotated[
    str | None,
    Query(max_length=40, description="the framework's, by its number or a day: 0.9.1, 2024-11; whose defaults are taken"),
]


@router.post(
    "/v1/export",
    tags=["exchange"],
    response_class=PlainTextResponse,
    responses=answers(None),
    openapi_extra=documentation.JOB_BODY,
)
async def export(request: Request, to: Annotated[str, Query(max_length=200)]) -> Response:
    """A job's parallelism for the program that runs it: `to` is deepspeed, accelerate, torchtitan or megatron."""
    return await ask(request, "export", job=body(request), to=to)


@router.post(
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
    return await ask(request, "ask", job=body(request), to=to)


@router.post(
    "/v1/fix", tags=["exchange"], response_class=Response, responses=answers(Fixes), openapi_extra=documentation.IMPORT_BODY
)
async def fix(request: Request, on: On = None, model: OfModel = None, given: From = None, release: Release = None) -> Response:
    """The smallest edits that make a file's job fit, in the file's own keys, each fix with a patch; nothing is written."""
    return await ask(request, "fix", text=body(request), on=on, model=model, given=given, release=release)


@router.post(
    "/v1/check",
    tags=["exchange"],
    response_class=Response,
    responses=answers(Checked, "text/plain"),
    openapi_extra=documentation.CHECK_BODY,
)
async def check(
    request: Request,
    on: On = None,
    model: OfModel = None,
    format: Annotated[Literal["json", "text", "markdown", "github", "gitlab", "sarif"], Query(description="its form")] = "json",
) -> Response:
    """Whether the jobs of several files fit, as a gate asks; `format` gives what GitHub, GitLab or a reader takes."""
    return await ask(request, "check", body=body(request), on=on, model=model, form=format)


@router.post(
    "/v1/diff", tags=["exchange"], response_class=Response, responses=answers(Differences), openapi_extra=documentation.DIFF_BODY
)
async def diff(request: Request, on: On = None, model: OfModel = None) -> Response:
    """What differs between two jobs, or the texts of two files: settings after defaults, memory by part, seconds by part."""
    return await ask(request, "diff", body=body(request), on=on, model=model)


@router.post(
    "/v1/import",
    tags=["exchange"],
    response_model=Found,
    response_class=Response,
    responses=answers(Found),
    openapi_extra=documentation.IMPORT_BODY,
)
async def import_(
    request: Request, given: From = None, model: OfModel = None, on: On = None, release: Release = None
) -> Response:
    """What a configuration, a command or a script of a framework says, as a job, with what was left out and what filled in."""
    return await ask(request, "import", text=body(request), given=given, model=model, on=on, release=release)
