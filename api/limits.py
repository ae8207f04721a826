"""A limit on the size of request bodies, kept while they arrive."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem

LIMIT = 256 * 1024
"""Bytes. A job takes a few hundred; an inline architecture a few thousand."""


class BodyLimit:
    """Refuses a request with 413 as soon as more than `LIMIT` bytes are announced or have come."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        has_body = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        body, more = b"", has_body
        too_large = announced.isdigit() and int(announced) > LIMIT
        while more and not too_large:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            too_large = len(body) > LIMIT
        if too_large:
            refusal = problem(413, "content-too-large", f"a request may have {LIMIT} bytes; a job needs a few hundred")
            await refusal(scope, receive, send)
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay if has_body else receive, send)
