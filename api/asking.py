"""From a request to the response that a worker process makes, for as long as the client is there."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.types import Receive

from .answers import answer
from .lanes import Full, OverBudget, Work
from .problems import problem
from .rate import Rate
from .settings import settings

LASTING = "public, max-age=3600"
"""What is worked out depends on nothing but the question, the release and the day; an ETag says whether it is still so."""
RETRY_SECONDS = 5
LEFT = 499
"""What nginx calls a request whose client has left; nobody gets it."""


async def ask(request: Request, kind: str, *, lasting: bool = True, **arguments: Any) -> Response:
    """The response to a question of a kind, which may be remembered if it is `lasting`. None is worked out for who left."""
    if lasting and (seconds := _rate().wait(request.client.host if request.client else "") if settings().rate else 0):
        said = f"this service answers {settings().rate} new questions of a client in a minute; ask again in {seconds} seconds"
        return problem(429, "too-many-questions", said, {"Retry-After": str(seconds), "Cache-Control": "no-store"})
    asked = asyncio.ensure_future(respond(request, kind, lasting, arguments))
    leaving = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({asked, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() else Response(status_code=LEFT)
    finally:
        leaving.cancel()
        asked.cancel()


@cache
def _rate() -> Rate:
    return Rate(settings().rate or 1)


async def respond(request: Request, kind: str, lasting: bool, arguments: dict[str, Any]) -> Response:
    """The response to a question, by a worker process where there are any."""
    work: Work | None = getattr(request.app.state, "work", None)
    try:
        found = await (work.ask(kind, arguments) if work else run_in_threadpool(answer, kind, arguments))
    except Full:
        said = f"more is asked of this service than it can answer now; ask again in {RETRY_SECONDS} seconds"
        return problem(503, "busy", said, {"Retry-After": str(RETRY_SECONDS), "Cache-Control": "no-store"})
    except OverBudget as error:
        what = {"time": "processor time", "memory": "memory"}[error.what]
        said = f"it takes more {what} than this service gives to a question; ask a smaller one, or the command line"
        return problem(422, "too-costly", said, {"Cache-Control": "no-store"})
    cached = LASTING if lasting and found.status < 500 else "no-store"
    return Response(found.body, found.status, {"Cache-Control": cached}, found.media_type)


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
