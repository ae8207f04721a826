"""How far a long search is, on standard error, once it takes longer than people like to wait without a word."""

from __future__ import annotations

import sys
from time import monotonic

PATIENCE = 2.0
"""Seconds before the first word, and between two."""


class Progress:
    """Says how many are done, every two seconds: `Progress("cards")` is called with the number."""

    def __init__(self, what: str, whole: int | None = None):
        self.what, self.whole = what, whole
        self.next = monotonic() + PATIENCE

    def __call__(self, done: int) -> None:
        """So many are done."""
        if monotonic() < self.next:
            return
        whole = "" if self.whole is None else f" of {self.whole:,}"
        print(f"... {done:,}{whole} {self.what} tried", file=sys.stderr, flush=True)
        self.next = monotonic() + PATIENCE
