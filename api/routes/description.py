"""The description of the service, for people and for programs."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from .. import documentation
from ..asking import LASTING, ask
from ..page import render_problems
from .pages import FOLDER

router = APIRouter(include_in_schema=False)


@router.get("/problems", response_class=HTMLResponse)
async def problem_page() -> Response:
    """What each problem's slug means."""
    return HTMLResponse(render_problems(), headers={"Cache-Control": LASTING})


@router.get("/openapi.json", response_class=Response)
async def document(request: Request) -> Response:
    """The description for programs."""
    text = await asyncio.to_thread(documentation.text, request.app)
    return Response(text, media_type="application/json", headers={"Cache-Control": LASTING})


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> Response:
    """The description for people: every route, its parameters and examples."""
    return HTMLResponse(await asyncio.to_thread(documentation.page, request.app), headers={"Cache-Control": LASTING})


@router.get("/llms.txt", response_class=PlainTextResponse)
async def for_agents() -> Response:
    """What can be asked, in short, for agents (llmstxt.org)."""
    return Response(
        (FOLDER / "llms.txt").read_text(encoding="utf-8"), media_type="text/plain", headers={"Cache-Control": LASTING}
    )


@router.get("/schema/{name}.json", response_class=Response)
async def schema(request: Request, name: str) -> Response:
    """The JSON Schema of a question or an answer: what editors complete and check a job's file by."""
    return await ask(request, "schema", name=name)
