"""What several routes take: parameters, a job in the address, a body."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from ..limits import BODY

Words = Annotated[str, Query(max_length=200, description="words of a name")]
Size = Annotated[float, Query(ge=0, le=1e15, allow_inf_nan=False)]
On = Annotated[str | None, Query(description="hardware, in place of the job's own")]


def items(request: Request, *others: str) -> list[tuple[str, str]]:
    """A job's fields in the address, without what else the question takes."""
    return [(name, value) for name, value in request.query_params.multi_items() if name not in others]


def body(request: Request) -> bytes:
    found: bytes = request.scope[BODY]
    return found
