"""How far a long search is, on standard error, once it takes longer than people like to wait without a word."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator.planner.plan_pieces import Progress as Settled

PATIENCE = 2.0
"""Seconds before the first word, and between two."""


class Progress:
    """Says how many are done, every two seconds: `Progress("cards")` is called with the number."""

    def __init__(self, what: str, whole: int | None = None):
        self.what, self.whole = what, whole
        self.next = monotonic() + PATIENCE

    def __call__(self, done: int) -> None:
        """So many are done."""
        whole = "" if self.whole is None else f" of {self.whole:,}"
        self.say(f"{done:,}{whole} {self.what} tried")

    def candidates(self, now: Settled) -> None:
        """So far a search for plans is."""
        share = f"{now.settled / now.candidates:.1%}" if now.candidates else "none"
        said = f"{now.settled:,} of {now.candidates:,} {self.what} settled ({share}), {now.simulated:,} of them simulated"
        self.say(f"{said}; {now.found:,} so far that none beats")

    def say(self, said: str) -> None:
        """Unless something was said just now."""
        if monotonic() >= self.next:
            print(f"... {said}", file=sys.stderr, flush=True)
            self.next = monotonic() + PATIENCE
