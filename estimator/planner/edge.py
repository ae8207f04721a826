"""The outermost of many values that fits, found with few questions where what fits need not be in one piece.

Values stand in a row from the inner to the outer end: upwards for the largest that fits, downwards for the smallest. Two answers
can be had of each: a bound that is quick (what does not fit by it does not fit), and the whole answer, which may jump from one
value to the next, as what a caching allocator holds does. Where the bound begins to say no is bracketed in growing steps, and the
bracket closed by interpolation; multiples of powers of two beyond it, at which kernels pad nothing, are asked, too. From there
the whole answer is asked inwards, value by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import NamedTuple

FARTHEST = 128
"""Steps up to which the next value is looked for that is not refused."""
ALIGNED = tuple(2**power for power in range(3, 13))
"""Multiples of these may take less than the values before them."""
FEW = 32
"""Values that are all looked at."""
STEEP = 4
"""Ratio of two values from which on they are far apart: what lies between is halved in proportion."""


class Seen(NamedTuple):
    """What is known of a value. `spare_bytes`: memory that is left, negative where it is too little."""

    fits: bool
    refused: bool = False
    spare_bytes: int | None = None


class Edge(NamedTuple):
    """The outermost value that fits; None where none does.

    `beyond`: the next value outwards, one that is not refused if there is any near; None at the end of the row. `untried`: values
    from the edge to the last one of which the bound does not say no, whose whole answer was not asked; `last` is that one.
    """

    value: int | None
    beyond: int | None = None
    untried: int = 0
    last: int | None = None


Ask = Callable[[int], Seen]


def outermost(values: Sequence[int], least: Ask, whole: Ask) -> Edge:
    """The edge of a few values, each of which is asked until one fits, from the outer end on."""
    legal = [value for value in values if not least(value).refused]
    found = next((at for at in reversed(range(len(legal))) if least(legal[at]).fits and whole(legal[at]).fits), None)
    if found is None:
        return Edge(None)
    farther = [*legal[found + 1 :], *values[values.index(legal[found]) + 1 :]]
    return Edge(legal[found], farther[0] if farther else None)


@dataclass(slots=True)
class Search:
    """Where values cease to fit. `least` is the quick bound, `whole` the answer; `tries`: values that are asked one by one."""

    row: range
    least: Ask
    whole: Ask
    tries: int
    values: range = range(0)
    """Those of the row that are looked at: all, or every n-th where the others are refused."""
    asked: set[int] = field(default_factory=set)

    def edge(self, start: int) -> Edge:
        """The edge, looked for from a value on that is not refused."""
        self.values = self.row
        if len(self.row) <= FEW:
            return outermost(self.row, self.least, self.whole)
        here = self.row.index(start)
        near = (step for step in range(1, FARTHEST) for at in (here + step, here - step) if not self._refused(at))
        self._look_at(start, next(near, 1))
        bound = self._bound(self.values.index(start))
        return self._edge(None if bound is None else self._inwards(bound), bound)

    def _look_at(self, value: int, step: int) -> None:
        """Take every so many values of the row, with this one among them."""
        self.values = self.row[self.row.index(value) % step :: step]

    def _edge(self, found: int | None, bound: int | None) -> Edge:
        if bound is None:
            return Edge(None)
        between = self.values[(-1 if found is None else found) + 1 : bound + 1]
        untried, last = sum(value not in self.asked for value in between), self.values[bound]
        if found is None:
            return Edge(None, None, untried, last)
        return Edge(self.values[found], self._beyond(found), untried, last)

    def _beyond(self, found: int) -> int | None:
        at = self.row.index(self.values[found]) + 1
        near = range(at, min(at + FARTHEST, len(self.row)))
        return self.row[next((one for one in near if not self._refused(one)), at)] if near else None

    def _bound(self, here: int) -> int | None:
        """The outermost place at which the bound does not say no, of all that were tried."""
        good = here if self._may_fit(here) else None
        if good is None:
            bad = here
            for at in self._ladder(here, -1):
                if self._may_fit(at):
                    good = self._between(at, bad, self.least)
                    break
                bad = at
        if good is None:
            good = next((at for at in self._ladder(here, 1) if self._may_fit(at)), None)
        while good is not None:
            bad = good
            for bad in self._ladder(good, 1):
                if not self._may_fit(bad):
                    break
                good = bad
            if good == bad:
                return good
            good = self._between(good, bad, self.least)
            farther = next((value for value in self._outside(self.values[good]) if self.least(value).fits), None)
            if farther is None:
                return good
            if farther not in self.values:
                self._look_at(farther, self.values.step // self.row.step)
            good = self.values.index(farther)
        return None

    def _inwards(self, bound: int) -> int | None:
        """The first place from the bound inwards at which the whole answer is that it fits."""
        for at in range(bound, max(bound - self.tries, -1), -1):
            if self._fits(at):
                return at
        bad = max(bound - self.tries + 1, 0)
        step = max(self.tries, self._too_far(bad))
        while bad > 0:
            at = max(bad - step, 0)
            if self._fits(at):
                return self._between(at, bad, self._whole)
            bad, step = at, 2 * step
        return None

    def _too_far(self, at: int) -> int:
        """How many places inwards the bound has as much more room as a place lacks."""
        lacking, here = self._whole(self.values[at]).spare_bytes, self.least(self.values[at]).spare_bytes
        inner = self.least(self.values[max(at - self.tries, 0)]).spare_bytes
        if lacking is None or here is None or inner is None or inner <= here:
            return 0
        return -lacking * self.tries // (inner - here)

    def _outside(self, bound: int) -> Iterator[int]:
        """Values beyond the bound where less may be needed: all, if they are few; else the next ones and the next multiples."""
        rest, step = self.row[self.row.index(bound) + 1 :], self.row.step
        if len(rest) > FEW:
            multiples = {(bound // unit + 1 if step > 0 else -(-bound // unit) - 1) * unit for unit in ALIGNED}
            next_ones = {bound + times * self.values.step for times in (2, 3)}
            yield from sorted((value for value in multiples | next_ones if value in rest), reverse=step > 0)
        else:
            yield from reversed(rest)

    def _ladder(self, at: int, direction: int) -> Iterator[int]:
        """Places in growing steps up to the end: where the value is 2, 8, 128, … times as large, or as small."""
        factor, last = 2, len(self.values) - 1 if direction > 0 else 0
        while at != last:
            value = self.values[at]
            value = max(value, 1) * factor if self.values.step * direction > 0 else value // factor
            goal = (value - self.values.start) // self.values.step
            goal = min(max(goal, at + 1), last) if direction > 0 else max(min(goal, at - 1), last)
            at = self._near(goal, *sorted((at, goal)))
            factor = min(factor * factor, 2**16)
            yield at

    def _between(self, good: int, bad: int, ask: Ask) -> int:
        """A place that fits, next to one that does not, between two such places."""
        halve = False
        while bad - good > 1:
            guess = min(max(self._guess(good, bad, halve, ask), good + 1), bad - 1)
            at = self._near(guess, good, bad)
            good, bad = (at, bad) if ask(self.values[at]).fits else (good, at)
            halve = not halve
        return good

    def _near(self, at: int, low: int, high: int) -> int:
        """The nearest place between two others that is not refused; the place itself where there is none near."""
        both = (one for step in range(FARTHEST) for one in (at - step, at + step))
        return next((one for one in both if (one == at or low < one < high) and not self.least(self.values[one]).refused), at)

    def _guess(self, good: int, bad: int, halve: bool, ask: Ask) -> int:
        near, far = self.values[good], self.values[bad]
        if max(near, far) > STEEP * max(min(near, far), 1):
            return (isqrt(max(near, 1) * max(far, 1)) - self.values.start) // self.values.step
        left, lacking = ask(near).spare_bytes, ask(far).spare_bytes
        if halve or left is None or lacking is None or left < 0 or lacking >= 0:
            return (good + bad) // 2
        return good + (bad - good) * left // (left - lacking)

    def _whole(self, value: int) -> Seen:
        self.asked.add(value)
        return self.whole(value)

    def _may_fit(self, at: int) -> bool:
        return self.least(self.values[at]).fits

    def _fits(self, at: int) -> bool:
        return self._may_fit(at) and self._whole(self.values[at]).fits

    def _refused(self, at: int) -> bool:
        return not 0 <= at < len(self.row) or self.least(self.row[at]).refused
