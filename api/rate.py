"""How many new questions one client may ask in a minute, where that is limited."""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from time import monotonic

MOST_CLIENTS = 10_000
"""Of those who asked longest ago, nothing is known any more."""


class Rate:
    """A bucket for each client, which fills by `per_minute` and holds as many."""

    def __init__(self, per_minute: int):
        self.per_minute = per_minute
        self.clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> int:
        """Takes one question of a client; seconds until it may ask again, 0 if it may now."""
        now = monotonic()
        left, then = self.clients.pop(client, (float(self.per_minute), now))
        left = min(self.per_minute, left + (now - then) * self.per_minute / 60)
        allowed = left >= 1
        self.clients[client] = (left - allowed, now)
        if len(self.clients) > MOST_CLIENTS:
            self.clients.popitem(last=False)
        return 0 if allowed else ceil((1 - left) * 60 / self.per_minute)
