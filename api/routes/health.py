"""For those who run the service."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ..asking import ask
from ..documentation import NOTHING
from ..observed import REGISTRY

router = APIRouter()


@router.get("/livez", tags=["health"])
async def livez() -> dict[str, str]:
    """The process runs."""
    return {"status": "alive"}


@router.get("/readyz", tags=["health"], response_class=Response, responses=NOTHING)
async def readyz(request: Request) -> Response:
    """The data can be read and a question answered."""
    return await ask(request, "ready", lasting=False)


@router.get("/metrics", tags=["health"], response_class=PlainTextResponse)
async def metrics() -> Response:
    """Counts of requests, their seconds and what waits, in Prometheus's text format."""
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
