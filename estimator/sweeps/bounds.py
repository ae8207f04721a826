"""Between what rows of a program lie in a box of its fields, so that only those are evaluated that can be the highest there.

A rounded quotient is its numerator over its divisor, and less than 1 beside that. Written so, rows that differ by how they round
lie close together, and their difference is bounded term by term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimator.sweeps.polynomials import Monomial, Terms
from estimator.sweeps.trace import Atom, Guard

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

ROUNDED = {"ceildiv": 1, "floordiv": -1}
"""Functions that are a quotient and something between 0 and 1, which is added or taken off."""
VAST = 1e30
"""Stands for infinity, which times nothing is no number."""
SLACK = 1e-12
"""Relative; differences of floating-point sums of whole numbers."""


class Intervals:
    """Between what expressions over these atoms lie where each field lies between two values."""

    def __init__(self, atoms: list[Atom], low: Mapping[str, float], high: Mapping[str, float]):
        self.atoms, self.low, self.high = atoms, low, high
        self._known: dict[int, tuple[float, float]] = {}

    def monomial(self, monomial: Monomial) -> tuple[float, float]:
        """A product of atoms."""
        least = most = 1.0
        for at in monomial:
            ends = [one * end for one in (least, most) for end in self._atom(at)]
            least, most = max(-VAST, min(ends)), min(VAST, max(ends))
        return least, most

    def decided(self, guard: Guard) -> bool | None:
        """Whether a guard holds everywhere, or nowhere; None where that depends, or is not known."""
        if not isinstance(guard.expression, dict):
            return None
        low, high = self.polynomial(guard.expression)
        if low > 0 or high < 0:
            return guard.relation == "!=" or (low > 0 and guard.relation != "==")
        return None

    def polynomial(self, terms: Terms) -> tuple[float, float]:
        """Whole numbers, added up and multiplied."""
        least = most = 0.0
        for monomial, coefficient in terms.items():
            ends = [coefficient * end for end in self.monomial(monomial)]
            least, most = least + min(ends), most + max(ends)
        return least, most

    def _atom(self, at: int) -> tuple[float, float]:
        if at not in self._known:
            kind, operands, least, most = self.atoms[at]
            if kind == "field":
                least, most = self.low[operands[0]], self.high[operands[0]]
            elif kind in ROUNDED and isinstance(operands[1], int):
                low, high = self.polynomial(operands[0])
                least, most = max(least, low / operands[1] - 1), min(most, high / operands[1] + 1)
            self._known[at] = max(least, -VAST), min(most, VAST)
        return self._known[at]


@dataclass(frozen=True, slots=True)
class Bounds:
    """`rows`, as sums of `smooth` monomials, and of `slack` ones times something between 0 and 1."""

    smooth: tuple[Monomial, ...]
    slack: tuple[Monomial, ...]
    rows: Array
    slack_rows: Array

    def highest(self, within: Intervals) -> Array:
        """Numbers of the rows one of which is the highest at any point of a box."""
        import numpy as np

        ends = np.asarray([within.monomial(each) for each in self.smooth])
        first = int(np.argmax(self.rows @ ends.mean(axis=1)))
        difference = self.rows - self.rows[first]
        slack = self.slack_rows - self.slack_rows[first]
        most = np.maximum(difference, 0) @ ends[:, 1] + np.minimum(difference, 0) @ ends[:, 0]
        if self.slack:
            most = most + np.maximum(slack, 0) @ np.asarray([within.monomial(each)[1] for each in self.slack])
        return np.flatnonzero(most >= -1 - SLACK * float(np.abs(self.rows[first]) @ np.abs(ends).max(axis=1)))


def bounds(atoms: list[Atom], monomials: tuple[Monomial, ...], rows: Array) -> Bounds:
    """Rows [moments, monomials] with rounded quotients written as quotients and what rounding adds."""
    import numpy as np

    written = [_written(atoms, monomial) for monomial in monomials]
    smooth = tuple(dict.fromkeys(m for parts, _ in written for m in parts))
    slack = tuple(dict.fromkeys(key for _, parts in written for key in parts))
    plain, rounding = np.zeros((len(monomials), len(smooth))), np.zeros((len(monomials), len(slack)))
    for row, (parts, rounded) in enumerate(written):
        for monomial, coefficient in parts.items():
            plain[row, smooth.index(monomial)] += coefficient
        for key, sign in rounded.items():
            rounding[row, slack.index(key)] += sign
    return Bounds(smooth, tuple(rest for _, rest in slack), rows @ plain, rows @ rounding)


def _written(atoms: list[Atom], monomial: Monomial) -> tuple[dict[Monomial, float], dict[tuple[int, Monomial], int]]:
    """A monomial without its first rounded quotient: polynomial, and for what is rounded and multiplied with what, the sign."""
    for i, at in enumerate(monomial):
        kind, operands, _, _ = atoms[at]
        rest = monomial[:i] + monomial[i + 1 :]
        if kind in ROUNDED and isinstance(operands[1], int) and all(atoms[other].low >= 0 for other in rest):
            found: dict[Monomial, float] = {}
            rounded: dict[tuple[int, Monomial], int] = {(at, rest): ROUNDED[kind]}
            for term, coefficient in operands[0].items():
                found[tuple(sorted(term + rest))] = coefficient / operands[1]
            return found, rounded
    return {monomial: 1.0}, {}
