"""Answers that were given before, as bytes: sent again without work, compressed once, and not sent to who has them already."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .limits import BODY
from .settings import settings

Headers = list[tuple[bytes, bytes]]
LASTING = b"public"
"""How the Cache-Control of a response begins that may be remembered."""
SMALL = 1000
"""Bytes of a body that is not worth compressing."""
GIVEN_AGAIN = "willitfit.again"
"""Where a scope says that its response was remembered."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A response; `packed`: its body in gzip, empty where that is not worth it."""

    status: int
    headers: Headers
    body: bytes
    packed: bytes
    tag: bytes

    @property
    def size(self) -> int:
        return len(self.body) + len(self.packed) + sum(len(n) + len(v) for n, v in self.headers) + 500


class Memory:
    """The last responses that may be remembered, of so many bytes in all. Every GET answers HEAD as well."""

    def __init__(self, app: ASGIApp):
        self.app = app
        self.kept: OrderedDict[tuple[object, ...], Remembered] = OrderedDict()
        self.size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            await self.app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        key = _key(scope)
        if found := self.kept.get(key):
            self.kept.move_to_end(key)
            scope[GIVEN_AGAIN] = True
            await _give(found, scope, send, head)
            return
        inner = {**scope, "method": "GET"} if head else scope
        await self.app(inner, receive, _Listener(self, key, scope, send, head).hear)
        scope["route"] = inner.get("route")

    def keep(self, key: tuple[object, ...], response: Remembered) -> None:
        """Remember a response, and forget those that were asked for longest ago."""
        if key in self.kept or response.size > settings().remembered:
            return
        self.kept[key] = response
        self.size += response.size
        while self.size > settings().remembered:
            self.size -= self.kept.popitem(last=False)[1].size


class _Listener:
    """What becomes of one response on its way."""

    def __init__(self, memory: Memory, key: tuple[object, ...], scope: Scope, send: Send, head: bool):
        self.memory, self.key, self.scope, self.send, self.head = memory, key, scope, send, head
        self.start: Message | None = None
        self.body = bytearray()

    async def hear(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            if headers.get(b"cache-control", b"").startswith(LASTING):
                self.start = message
            else:
                await self.send(message)
        elif self.start is None:
            await self.send({**message, "body": b""} if self.head else message)
        else:
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                found = _remembered(self.start, bytes(self.body))
                self.memory.keep(self.key, found)
                await _give(found, self.scope, self.send, self.head)


def _key(scope: Scope) -> tuple[object, ...]:
    """All that an answer depends on: also the day, by which prices are old."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    body = scope.get(BODY, b"")
    return method, scope["path"], scope["query_string"], body and blake2b(body, digest_size=16).digest(), date.today()


def _remembered(start: Message, body: bytes) -> Remembered:
    tag = b'"%s"' % blake2b(body, digest_size=12).hexdigest().encode()
    left = [(name, value) for name, value in start["headers"] if name not in (b"content-length", b"vary")]
    packed = gzip.compress(body, 6, mtime=0) if len(body) > SMALL else b""
    headers = [*left, (b"etag", b"W/" + tag), (b"vary", b"Accept-Encoding")]  # weak: of the body, compressed or not
    return Remembered(start["status"], headers, body, packed, tag)


async def _give(found: Remembered, scope: Scope, send: Send, head: bool) -> None:
    asked = {name: value for name, value in scope["headers"] if name in (b"accept-encoding", b"if-none-match")}
    if found.status == 200 and scope["method"] != "POST" and _has(asked.get(b"if-none-match", b""), found.tag):
        kept = [(name, value) for name, value in found.headers if name != b"content-type"]
        await send({"type": "http.response.start", "status": 304, "headers": kept})
        await send({"type": "http.response.body", "body": b""})
        return
    packs = found.packed and _takes_gzip(asked.get(b"accept-encoding", b""))
    body = found.packed if packs else found.body
    headers = [*found.headers, (b"content-length", b"%d" % len(body))]
    if packs:
        headers.append((b"content-encoding", b"gzip"))
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else body})


def _has(tags: bytes, tag: bytes) -> bool:
    """Whether the client has what a tag stands for (If-None-Match compares weakly)."""
    return bool(tags) and (tags.strip() == b"*" or tag in [one.strip().removeprefix(b"W/") for one in tags.split(b",")])


def _takes_gzip(encodings: bytes) -> bool:
    for one in encodings.lower().split(b","):
        name, _, quality = one.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
