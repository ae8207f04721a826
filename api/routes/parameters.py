"""What several routes take: parameters, a job in the address, a body."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from ..limits import BODY

Words = Annotated[str, Query(max_length=200, description="words of a name")]
Size = Annotated[float, Query(ge=0, le=1e15, allow_inf_nan=False)]
On = Annotated[str | None, Query(description="hardware, in place of the job's own")]
Tokens = Annotated[str | None, Query(max_length=200, description="what a training run processes: 100M, 1e9")]
Within = Annotated[str | None, Query(max_length=200, description="what the run may take: 24h, 3d")]
Under = Annotated[str | None, Query(max_length=200, description="what it may cost: $50 or 50 EUR the whole run, $2/h an hour")]
Sold = Annotated[str | None, Query(max_length=200, description="only cards sold with so much memory: 24GB, 24GB..80GB")]
Gpus = Annotated[int, Query(ge=1, le=2**17, description="on no more GPUs than these")]


def items(request: Request, *others: str) -> list[tuple[str, str]]:
    """A job's fields in the address, without what else the question takes."""
    return [(name, value) for name, value in request.query_params.multi_items() if name not in others]


def body(request: Request) -> bytes:
    found: bytes = request.scope[BODY]
    return found
