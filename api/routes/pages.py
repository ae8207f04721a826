"""Pages for people, and the description of the service for programs."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from .. import documentation
from ..asking import LASTING, ask
from ..page import render_problems

router = APIRouter(include_in_schema=False)


@router.get("/", response_class=HTMLResponse)
async def page(request: Request) -> Response:
    """The page: a form, and the answer to the job in its address."""
    return await ask(request, "page", items=request.query_params.multi_items())


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
