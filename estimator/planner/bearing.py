"""What one copy of a served model bears: how many requests a second, within limits of its first token and of those after it.

A copy has C sequences at a time. With times of a prompt's pass p and of a decoding step d, answers of n tokens and one prompt
read at a time, all C take T(C) = C p + (n - 1) d, so that it bears C / T(C) requests a second (serving/throughput.py). At a load
of r requests a second, which come at random, prompts are read for u = r p of the time, and the first token comes after

    u p / (2 (1 - u)) + d + p

in the mean: the wait of a queue with one server whose service is always as long (Pollaczek and Khinchine), the step that is
running, and the prompt's own pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estimator.contract.answer import ServingTime
from estimator.pipeline.estimation import judged_and_served

SEQUENCES = (1, 2, 3, *(part << shift for shift in range(10) for part in (4, 5, 6, 7)))
"""Numbers of sequences at a time that are tried, four for each doubling: all hardware is asked for the same ones, so that what is
simulated once serves for cards alike."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds at most to the first token, in the mean, and for each after it."""

    first: float | None = None
    each: float | None = None

    def broken(self, first: float, each: float) -> str:
        """Which limit is not kept; nothing if both are."""
        if self.each is not None and each > self.each:
            return f"a token takes {each * 1e3:.3g} ms, more than {self.each * 1e3:g}"
        if self.first is not None and first > self.first:
            return f"the first token comes after {first * 1e3:.3g} ms in the mean, more than {self.first * 1e3:g}"
        return ""


@dataclass(frozen=True, slots=True)
class Borne:
    """A copy at some number of sequences at a time, as its memory has room for and as fast as `time` says."""

    sequences: int
    time: ServingTime

    @property
    def rate(self) -> float:
        """Requests a second that it bears."""
        return self.time.requests_per_second

    def first(self, rate: float, slow: bool = False) -> float:
        """Seconds to the first token in the mean at so many requests a second; `slow`: by the slow end of the ranges."""
        read, step = (part.range_seconds[1] if slow else part.step_seconds for part in (self.time.prefill, self.time.decode))
        busy = min(rate * read, 1 - 1e-9)
        return busy * read / (2 * (1 - busy)) + step + read

    def broken(self, limits: Limits, rate: float, slow: bool = False) -> str:
        """Which limit it does not keep at so many requests a second."""
        each = self.time.range_time_per_output_token_seconds[1] if slow else self.time.time_per_output_token_seconds
        return limits.broken(self.first(rate, slow), each)


@dataclass(slots=True)
class Copy:
    """One copy on some hardware: `job` with any number of sequences at a time. What was asked is remembered."""

    job: Mapping[str, Any]
    allow_files: bool
    known: dict[int, Borne | str | None] = field(default_factory=dict)

    def at(self, sequences: int) -> Borne | str | None:
        """The copy at so many sequences; why its memory has no room for them; None where its speed is not known."""
        if sequences not in self.known:
            self.known[sequences] = self._asked(sequences)
        return self.known[sequences]

    def _asked(self, sequences: int) -> Borne | str | None:
        serving = {**self.job.get("serving", {}), "concurrency": sequences}
        found, time = judged_and_served({**self.job, "serving": serving}, self.allow_files)
        if found.verdict.fits is False:
            return found.verdict.reason
        return None if time is None else Borne(sequences, time)

    def most(self, limits: Limits) -> Borne | str | None:
        """With as many sequences as its memory has room for and the limits allow; why not even one; None where that is not known.

        The limit of the first token is that without a queue.
        """
        first = self.at(1)
        if not isinstance(first, Borne):
            return first
        if broken := first.broken(limits, 0.0):
            return f"even with one sequence at a time {broken}"
        best, low, high = first, 0, len(SEQUENCES)
        while high - low > 1:
            middle = (low + high) // 2
            found = self.at(SEQUENCES[middle])
            if isinstance(found, Borne) and not found.broken(limits, 0.0):
                best, low = found, middle
            else:
                high = middle
        return best

    def least(self, rate: float, most: Borne) -> Borne:
        """With the fewest sequences that bear so many requests a second, up to `most`."""
        best, low, high = most, -1, SEQUENCES.index(most.sequences)
        while high - low > 1:
            middle = (low + high) // 2
            found = self.at(SEQUENCES[middle])
            if isinstance(found, Borne) and found.rate >= rate:
                best, high = found, middle
            else:
                low = middle
        return best
