"""The service: REST under /v1, and one page that works without JavaScript."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from estimator.contract.version import SOFTWARE_VERSION

from . import documentation, problems
from .lanes import NICE, Work
from .limits import Limits
from .observed import WAITING, WORKING, Observed
from .remembered import Memory
from .routes import ROUTERS
from .settings import settings


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Worker processes for as long as the service runs; without any, what is asked is worked out in threads."""
    if not settings().workers:
        yield
        return
    app.state.work = work = Work(settings())
    for name, lane in zip(NICE, work.lanes, strict=True):
        WAITING.labels(name).set_function(partial(getattr, lane, "waiting"))
        WORKING.labels(name).set_function(partial(getattr, lane, "busy"))
    try:
        await work.start()
        yield
    finally:
        app.state.work = None
        await work.stop()


app = FastAPI(
    title="willitfit",
    version=SOFTWARE_VERSION,
    description=documentation.DESCRIPTION,
    openapi_tags=documentation.TAGS,
    generate_unique_id_function=lambda route: route.name,
    openapi_url=None,
    docs_url=None,
    redoc_url=None,
    lifespan=_lifespan,
)
app.add_middleware(Memory)
app.add_middleware(Limits)
if settings().cors != "none":
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[origin.strip() for origin in settings().cors.split(",")],
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["Content-Type", "If-None-Match", "X-Request-ID"],
        expose_headers=["ETag", "Retry-After", "X-Request-ID"],
        max_age=86400,
    )
app.add_middleware(Observed)
problems.install(app)
documentation.install(app)
for router in ROUTERS:
    app.include_router(router)
