"""The pages: each GET holds its whole question in its address; a file is sent by a form, and held nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse

from ..asking import LASTING, ask
from ..limits import BODY
from ..page import render_refusal, render_words
from ..problems import MEDIA_TYPE

router = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)
VIEWS = ("", "which", "models", "plan", "replicas", "timeline", "what-if", "limit", "compare", "cost", "explain", "along")
"""Pages whose question is in their address."""
SENT = ("file", "explain")
"""Pages whose question is a form that is sent."""
MOST_FIELDS = 100
"""Of a form that is sent."""
FOLDER = Path(__file__).parents[1] / "static"
STATIC = {"style.css": "text/css", "page.js": "text/javascript", "will-it-fit.js": "text/javascript"}


async def _page(request: Request) -> Response:
    """A page, and the answer to the question in its address."""
    return await _asked(request, request.url.path.rpartition("/")[2], request.query_params.multi_items())


for view in VIEWS:
    router.add_api_route(f"/{view}", _page, name=view or "page")


@router.get("/file")
async def file(request: Request) -> Response:
    """The form for a file."""
    return await _asked(request, "file", [])


async def _sent(request: Request) -> Response:
    """The answer to a form that was sent: a file, or what was measured."""
    view = request.url.path.rpartition("/")[2]
    text = request.scope[BODY].decode("utf-8", "replace")
    try:
        items = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return HTMLResponse(render_refusal(view, [], 422, f"a form has {MOST_FIELDS} fields at most"), 422)
    return await _asked(request, view, items)


for view in SENT:
    router.add_api_route(f"/{view}", _sent, methods=["POST"], name=f"{view} sent")


@router.get("/words")
async def words() -> Response:
    """The words of the pages, explained."""
    return HTMLResponse(render_words(), headers={"Cache-Control": LASTING})


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """The pages' look, and their script: as an answer they are compressed once, and remembered."""
    if name not in STATIC:
        raise HTTPException(404)
    text = (FOLDER / name).read_text(encoding="utf-8")
    return Response(text, media_type=STATIC[name], headers={"Cache-Control": LASTING})


async def _asked(request: Request, name: str, items: list[tuple[str, str]]) -> Response:
    """The page that answers; where the service takes no more on, or the question is too costly, a page that says so."""
    found = await ask(request, "page", items=items, view=name)
    if found.media_type != MEDIA_TYPE:
        return found
    problem: dict[str, Any] = json.loads(bytes(found.body))
    kept = {key: value for key, value in found.headers.items() if key in ("retry-after", "cache-control")}
    return HTMLResponse(render_refusal(name, items, found.status_code, problem["detail"]), found.status_code, kept)
