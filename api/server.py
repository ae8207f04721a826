"""How `willitfit serve` runs the service: uvicorn, with limits on how long a connection may say nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from .settings import settings

MOST_CONNECTIONS = 2000
"""Beyond which the server answers 503 at once."""
STOP_SECONDS = 1
"""How long requests that run have to come to their end when the server is stopped."""

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Base
else:
    Base = AutoHTTPProtocol


class Impatient(Base):
    """Closes a connection on which no request has come whole, up to its body, in the time that one has."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.deadline:
            self.deadline.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """A connection that waits for headers has a deadline, which no further byte of them moves."""
        at_work = self.cycle is not None and not self.cycle.response_complete
        if at_work and self.deadline:
            self.deadline.cancel()
            self.deadline = None
        elif not at_work and not self.deadline:
            self.deadline = self.loop.call_later(settings().body, self._give_up)

    def _give_up(self) -> None:
        self.deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def run(host: str, port: int) -> None:
    """Serve until told to stop; what is worked out then ends with it."""
    uvicorn.run(
        f"{__package__}.app:app",
        host=host,
        port=port,
        root_path=settings().root_path,
        http=Impatient,
        ws="none",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=STOP_SECONDS,
        server_header=False,
    )
