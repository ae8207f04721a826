"""What one symbolic run records: the atoms of its numbers, and the decisions that were made of them."""

from __future__ import annotations

from math import gcd, inf, prod
from typing import Any, NamedTuple

from .polynomials import Monomial, Terms, bounded_product, order
from .sym import Sym


class Atom(NamedTuple):
    """A field that varies (`kind` field), or a function of expressions: ceildiv, floordiv, bit_length, shift; ceil, floor and
    round of a `Real`. Its value lies from `low` to `high`."""

    kind: str
    operands: tuple[Any, ...]
    low: float
    high: float


class Guard(NamedTuple):
    """An expression (`Terms`, or a `Real`'s node) that is `==`, `!=`, `>` or `>=` 0."""

    expression: Any
    relation: str


class Trace:
    """The atoms and the guards of one symbolic run."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.hints: list[int] = []
        """Each atom's value at the point at which the run is made."""
        self.guards: dict[object, Guard] = {}
        self._known: dict[object, Sym] = {}

    def field(self, name: str, hint: int) -> Sym:
        """A field of a job that varies, of at least 1; `hint`: its value at the point at which the run is made."""
        return self._atom(("field", name), "field", (name,), hint, 1, inf)

    def _atom(self, key: object, kind: str, operands: tuple[Any, ...], hint: int, low: float, high: float) -> Sym:
        if key not in self._known:
            self.atoms.append(Atom(kind, operands, low, high))
            self.hints.append(hint)
            self._known[key] = Sym(self, {(len(self.atoms) - 1,): 1}, hint)
        return self._known[key]

    def number(self, terms: Terms, hint: int) -> Any:
        """A polynomial as a `Sym`, or as an `int` where nothing in it varies."""
        if not terms:
            return 0
        if len(terms) == 1 and () in terms:
            return terms[()]
        return Sym(self, terms, hint)

    def at_hint(self, terms: Terms) -> int:
        """A polynomial's value at the point at which the run is made."""
        return sum(coefficient * prod(self.hints[at] for at in monomial) for monomial, coefficient in terms.items())

    def function(self, kind: str, hint: int, low: float, high: float, *operands: Any) -> Sym:
        """An atom that is a function of numbers, symbolic or not."""
        key = (kind, *(one.key if isinstance(one, Sym) else one for one in operands))
        return self._atom(key, kind, tuple(one.terms if isinstance(one, Sym) else one for one in operands), hint, low, high)

    def bounds(self, terms: Terms) -> tuple[float, float]:
        """Between what a polynomial lies, whatever its fields are."""
        least, most = self._sum_of_bounds(terms)
        if least < 0 < most and len(reduced := self._reduced(terms)) > 1 and () not in terms:
            low, high = self._sum_of_bounds(reduced)  # of b s - b, s - 1 tells the sign
            least, most = (0 if low >= 0 else least), (0 if high <= 0 else most)
        return least, most

    def _sum_of_bounds(self, terms: Terms) -> tuple[float, float]:
        least = most = 0.0
        for monomial, coefficient in terms.items():
            low, high = 1.0, 1.0
            for at in monomial:
                atom = self.atoms[at]
                if atom.low < 0:
                    return -inf, inf
                low, high = low * atom.low, bounded_product(high, atom.high)
            ends = bounded_product(coefficient, low), bounded_product(coefficient, high)
            least, most = least + min(ends), most + max(ends)
        return least, most

    def positive(self, terms: Terms, hint: int, strictly: bool) -> bool:
        """Whether a polynomial is more than 0, or not less; recorded where it depends on the fields."""
        low, high = self.bounds(terms)
        if low > 0 or (not strictly and low == 0):
            return True
        if high < 0 or (strictly and high == 0):
            return False
        answer = hint > 0 if strictly else hint >= 0
        if answer:
            self._record(terms, ">" if strictly else ">=")
        else:
            self._record({m: -c for m, c in terms.items()}, ">=" if strictly else ">")
        return answer

    def zero(self, terms: Terms, hint: int) -> bool:
        """Whether a polynomial is 0; recorded where it depends on the fields."""
        low, high = self.bounds(terms)
        if low > 0 or high < 0:
            return False
        self._record(terms, "!=" if hint else "==")
        return not hint

    def _record(self, terms: Terms, relation: str) -> None:
        terms = self._reduced(terms)
        self.guards.setdefault((frozenset(terms.items()), relation), Guard(terms, relation))

    def _reduced(self, terms: Terms) -> Terms:
        """Without factors that all terms have and that are always positive."""
        shortest: Monomial = min(terms, key=order)
        common = list(shortest)
        for monomial in terms:
            common = [at for at in common if at in monomial and self.atoms[at].low > 0]
        common = [at for i, at in enumerate(common) if all(m.count(at) >= common[: i + 1].count(at) for m in terms)]
        factor = gcd(*terms.values())
        reduced = {}
        for monomial, coefficient in terms.items():
            left = list(monomial)
            for at in common:
                left.remove(at)
            reduced[tuple(left)] = coefficient // factor
        return reduced

    def never_negative(self, node: Any) -> bool:
        """Whether a floating-point expression is at least 0, whatever the fields are."""
        if isinstance(node, float):
            return node >= 0
        if node[0] == "whole":
            return self.bounds(dict(node[1]))[0] >= 0
        return node[0] != "sub" and self.never_negative(node[1]) and self.never_negative(node[2])

    def compare_real(self, node: Any, hint: float, relation: str) -> bool:
        """As `positive` and `zero`, of a number with a fraction; a `relation` that does not hold is recorded as its opposite."""
        holds = {"==": hint == 0, ">": hint > 0, ">=": hint >= 0}[relation]
        if not holds and relation == "==":
            relation = "!="
        elif not holds:
            node, relation = ("sub", 0.0, node), ">=" if relation == ">" else ">"
        self.guards.setdefault((node, relation), Guard(node, relation))
        return holds
