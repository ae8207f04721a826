"""Limits on a request, kept while it arrives: bytes of its address, bytes of its body, seconds until it is there."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import problem
from .settings import settings

LIMIT = 256 * 1024
"""Bytes of a body. A job takes a few hundred; an inline architecture a few thousand."""
BATCH_LIMIT = 16 * LIMIT
"""Bytes of a body that has many jobs."""
BATCH = "/v1/estimates"
ADDRESS_LIMIT = 8 * 1024
"""Bytes of an address: a job with every field in its query takes some 3,000."""
BODY = "willitfit.body"
"""Where a scope has its body."""
CLOSE = {"Connection": "close"}


class _TooLargeError(Exception):
    pass


class Limits:
    """Refuses a request whose address is too long with 414, one with too large a body with 413 as soon as that is announced or
    has come, and one that does not come to its end with 408."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > ADDRESS_LIMIT:
            said = f"an address may have {ADDRESS_LIMIT} bytes; send a long job as the body of a POST"
            await problem(414, "address-too-long", said)(scope, receive, send)
            return
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        limit = BATCH_LIMIT if scope["path"] == scope.get("root_path", "") + BATCH else LIMIT
        try:
            async with asyncio.timeout(settings().body):
                body = await _body(scope, receive, limit)
        except _TooLargeError:
            said = f"a request may have {limit} bytes; a job needs a few hundred"
            await problem(413, "content-too-large", said, CLOSE)(scope, receive, send)
        except TimeoutError:
            said = f"the body must have come within {settings().body:g} seconds"
            await problem(408, "request-timeout", said, CLOSE)(scope, receive, send)
        else:
            if body is not None:
                scope[BODY] = body
                await self.app(scope, _again(body, receive), send)


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """A request's whole body; None where the client left before its end."""
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
        raise _TooLargeError
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise _TooLargeError
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
