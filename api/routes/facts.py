"""What is known: models, accelerators, nodes, offers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from estimator.contract.rows import GpuRow, ModelRow, NodeRow, OfferRow
from estimator.hardware.accelerator import Accelerator
from estimator.hardware.node import Node
from estimator.views.inspection import Card

from ..asking import ask
from ..documentation import answers
from .parameters import Size, Words

router = APIRouter()


@router.get("/v1/models", tags=["facts"], response_class=Response, responses=answers(list[ModelRow]))
async def models(request: Request, search: Words = "", min: Size = 0, max: Size | None = None) -> Response:
    """Known models of `min` to `max` parameters whose names have the words of `search` in them, smallest first."""
    return await ask(request, "models", search=search, least=min, most=max)


@router.get("/v1/models/{name:path}", tags=["facts"], response_class=Response, responses=answers(Card))
async def model(request: Request, name: str) -> Response:
    """What one model is made of: its parameters by module and by layer, in bytes, and what a token adds to its cache."""
    return await ask(request, "model", name=name)


@router.get("/v1/gpus", tags=["facts"], response_class=Response, responses=answers(list[GpuRow]))
async def gpus(request: Request, search: Words = "") -> Response:
    """Accelerators that have the words of `search` in a name, or as vendor, architecture, form or memory (24GB)."""
    return await ask(request, "gpus", search=search)


@router.get("/v1/gpus/{name}", tags=["facts"], response_class=Response, responses=answers(Accelerator))
async def gpu(request: Request, name: str) -> Response:
    """Every fact about one accelerator, with its sources."""
    return await ask(request, "gpu", name=name)


@router.get("/v1/nodes", tags=["facts"], response_class=Response, responses=answers(list[NodeRow]))
async def nodes(request: Request, search: Words = "") -> Response:
    """Systems and clouds' instances that have the words of `search` in a name, or as provider, accelerator or GPUs (8x)."""
    return await ask(request, "nodes", search=search)


@router.get("/v1/nodes/{name}", tags=["facts"], response_class=Response, responses=answers(Node))
async def node(request: Request, name: str) -> Response:
    """Every fact about one node, with its sources."""
    return await ask(request, "node", name=name)


@router.get("/v1/prices", tags=["facts"], response_class=Response, responses=answers(list[OfferRow]))
async def prices(request: Request, search: Words = "") -> Response:
    """Offers that have every word of `search`, cheapest per GPU-hour first."""
    return await ask(request, "offers", search=search)
