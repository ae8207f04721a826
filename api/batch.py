"""Many jobs in one request, a line of JSON each; so are their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from .asking import respond
from .problems import problem
from .settings import settings

MEDIA_TYPE = "application/x-ndjson"


def answered(request: Request, body: bytes) -> Response:
    """The answers to a body's jobs, in their order; the next is worked out while the last is on its way."""
    lines = [line for line in body.splitlines() if line.strip()]
    most = settings().batch
    if not 1 <= len(lines) <= most:
        said = f"has {len(lines)} jobs; send 1 to {most}, each as JSON on a line of its own"
        return problem(422, "invalid-job", f"request body: {said}")
    return StreamingResponse(_answers(request, lines), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})


async def _answers(request: Request, lines: list[bytes]) -> AsyncIterator[bytes]:
    at_a_time = max(1, settings().workers)
    running = [asyncio.ensure_future(_line(request, line)) for line in lines[:at_a_time]]
    try:
        for following in [*lines[at_a_time:], *(None for _ in running)]:
            yield await running.pop(0)
            if following is not None:
                running.append(asyncio.ensure_future(_line(request, following)))
    finally:
        for task in running:
            task.cancel()


async def _line(request: Request, line: bytes) -> bytes:
    return bytes((await respond(request, "line", False, {"job": line})).body) + b"\n"
