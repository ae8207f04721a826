"""Answers within other people's pages: a badge, a frame, and what oEmbed's consumers ask for it."""

from __future__ import annotations

import json
from html import escape
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from estimator.contract.errors import InvalidJob

from .. import documentation
from ..asking import ask
from ..observed import POLICY_NAME, policy
from ..page import link
from ..pages.asked import Items, asked
from ..pages.badge import OTHERWISE, Badge, drawn
from ..pages.in_words import in_words
from ..problems import MEDIA_TYPE
from ..settings import settings

router = APIRouter(tags=["embedding"])
WIDTH, HEIGHT, HEIGHT_OF_ALL = 640, 280, 520
"""Pixels of a frame: of one answer, and of every usual way."""
LASTS = 86400
MOST_FIELDS = 100
NONE_OF_OURS = "this is no address of an answer of this service"
PAGES = ("", "embed")
"""Pages of this service whose answers can be embedded."""

NOT_JSON: dict[int | str, dict[str, str]] = {501: {"description": "asked for in another form than JSON"}}
PICTURE: dict[str, Any] = {"image/svg+xml": {}}
PICTURED: dict[int | str, dict[str, Any]] = {
    status: {**said, "content": said["content"] | PICTURE} for status, said in documentation.answers(None).items()
} | {200: {"description": "a picture", "content": PICTURE}}
"""A picture also where the question is not answered, unless the request is none."""


class Embedded(BaseModel):
    """What oEmbed's consumers get: https://oembed.com, 2.3.4.4 (rich)."""

    version: str = "1.0"
    type: str = "rich"
    title: str
    provider_name: str = "willitfit"
    provider_url: str
    cache_age: int = LASTS
    html: str
    width: int
    height: int


@router.get(
    "/badge.svg",
    response_class=Response,
    responses=PICTURED,
    openapi_extra=documentation.BADGE_QUERY,
)
async def badge_svg(request: Request) -> Response:
    """A badge as a picture: of one job by its fields, or of a model on hardware; `way` says which usual way, such as qlora."""
    return await _badge(request, "svg")


@router.get(
    "/badge.json",
    response_class=Response,
    responses=documentation.answers(Badge),
    openapi_extra=documentation.BADGE_QUERY,
)
async def badge_json(request: Request) -> Response:
    """The same, as shields.io's endpoint takes it."""
    return await _badge(request, "json")


async def _badge(request: Request, form: str) -> Response:
    found = await ask(request, "badge", items=request.query_params.multi_items(), form=form)
    if found.media_type != MEDIA_TYPE or form == "json":
        return found
    problem = json.loads(bytes(found.body))
    kept = {key: value for key, value in found.headers.items() if key in ("retry-after", "cache-control")}
    picture = drawn("will it fit?", problem["title"], OTHERWISE, problem["detail"], form, True)
    return Response(picture, found.status_code, kept, "image/svg+xml")


@router.get("/embed", response_class=HTMLResponse, include_in_schema=False)
async def embed(request: Request) -> Response:
    """An answer in few words, for a frame of another page."""
    found = await ask(request, "embed", items=request.query_params.multi_items())
    if found.media_type == MEDIA_TYPE:
        return found
    found.headers[POLICY_NAME.decode()] = policy(_frames())
    return found


def _frames() -> str:
    """Whose frames an answer may be in, as the policy has it."""
    given = settings().frames
    return f"'{given}'" if given in ("none", "self") else given.replace(",", " ")


@router.get("/oembed", response_class=Response, responses=documentation.answers(Embedded) | NOT_JSON)
async def oembed(
    request: Request,
    url: Annotated[str, Query(max_length=4000, description="of a page of this service that has an answer")],
    maxwidth: Annotated[int, Query(ge=1, le=10_000)] = WIDTH,
    maxheight: Annotated[int, Query(ge=1, le=10_000)] = HEIGHT_OF_ALL,
    format: Annotated[str, Query(max_length=20, description="json")] = "json",
) -> Response:
    """The frame in which a page's answer is embedded (oEmbed 1.0). 404 where the address is no answer of this service."""
    if format != "json":
        raise HTTPException(501, "oEmbed is answered in JSON alone")
    here = settings().address or f"{request.url.scheme}://{request.url.netloc}"
    items = _asked(url, here)
    fields = dict(items)
    width, height = min(maxwidth, WIDTH), min(maxheight, HEIGHT if {"task", "way", "method"} & {*fields} else HEIGHT_OF_ALL)
    title = f"Will it fit? {fields['model']}" + (f" on {fields['on']}" if fields.get("on") else "")
    attributes = f'src="{escape(here + link("embed", items))}" title="{escape(title)}" width="{width}" height="{height}"'
    frame = f'<iframe {attributes} style="border:0;max-width:100%" loading="lazy"></iframe>'
    found = Embedded(title=title, provider_url=here + link(""), html=frame, width=width, height=height)
    return Response(found.model_dump_json(), media_type="application/json", headers={"Cache-Control": f"max-age={LASTS}"})


def _asked(url: str, here: str) -> Items:
    """The question in the address of an answer of ours; one without a host is taken for ours."""
    try:
        parts = urlsplit(url)
        items = parse_qsl(parts.query, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise HTTPException(404, NONE_OF_OURS) from None
    ours = not parts.netloc or f"{parts.scheme}://{parts.netloc}" == here
    if not ours or parts.path.removeprefix(f"{settings().root_path}/") not in PAGES or not dict(items).get("model"):
        raise HTTPException(404, NONE_OF_OURS)
    try:
        view, given = in_words("", asked(items))
    except InvalidJob:
        raise HTTPException(404, NONE_OF_OURS) from None
    if view:
        raise HTTPException(404, NONE_OF_OURS)
    return given.items
