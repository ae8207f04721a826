"""What is seen of each request from outside: its id, a line in the log, counts for Prometheus, headers for browsers."""

from __future__ import annotations

import json
import re
import secrets
import sys
from datetime import UTC, datetime
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .remembered import GIVEN_AGAIN
from .settings import settings


def policy(frames: str) -> str:
    """What a page of ours may load: what comes from here, and nothing that is written into it; and whose frames it may be in."""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
        f"manifest-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {frames}"
    )


_ID = re.compile(rb"[\w.-]{1,64}")
POLICY_NAME = b"content-security-policy"
SECURE = [
    (POLICY_NAME, policy("'self'").encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
]

REGISTRY = CollectorRegistry()
REQUESTS = Counter("willitfit_requests", "Requests that were answered", ("route", "method", "status"), registry=REGISTRY)
SECONDS = Histogram(
    "willitfit_request_seconds",
    "From a request's headers to the end of its answer",
    ("route",),
    buckets=(0.001, 0.005, 0.025, 0.1, 0.25, 1, 2.5, 10, 30),
    registry=REGISTRY,
)
AGAIN = Counter("willitfit_remembered", "Answers that were given from memory", registry=REGISTRY)
WAITING = Gauge("willitfit_waiting", "Questions that wait for a process", ("lane",), registry=REGISTRY)
WORKING = Gauge("willitfit_working", "Questions that are worked out", ("lane",), registry=REGISTRY)
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})


class Observed:
    """Gives each request an id, its own if it brings one, and says what became of it."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = perf_counter()
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        number = given if _ID.fullmatch(given) else secrets.token_hex(8).encode()
        status, size = 500, 0

        async def observed(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                given_policy = any(name == POLICY_NAME for name, _ in message["headers"])
                secure = [one for one in SECURE if not (given_policy and one[0] == POLICY_NAME)]
                message = {**message, "headers": [*message["headers"], *secure, (b"x-request-id", number)]}
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, observed)
        finally:
            _tell(scope, number.decode(), status, size, perf_counter() - begun)


def _tell(scope: Scope, number: str, status: int, size: int, seconds: float) -> None:
    again = GIVEN_AGAIN in scope
    route = "remembered" if again else getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in METHODS else "other"
    REQUESTS.labels(route, method, status).inc()
    SECONDS.labels(route).observe(seconds)
    if again:
        AGAIN.inc()
    if settings().log == "json":
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": number,
            "client": (scope.get("client") or ("",))[0],
            "method": method,
            "path": scope["path"],
            "status": status,
            "bytes": size,
            "milliseconds": round(1000 * seconds, 1),
            "remembered": again,
        }
        sys.stderr.write(json.dumps(line) + "\n")
