"""Whole numbers that remember how they were computed: what a symbolic run of a job counts with instead of integers.

A `Sym` is a polynomial with integer coefficients over *atoms*: the fields that vary, and what no polynomial says (a quotient
rounded up or down, a power of two). Arithmetic makes polynomials. Whatever turns a number into a decision (a comparison, a truth
value, an index) is answered for the point at which the run is made, and is recorded as a `Guard`: the run holds wherever all of
its guards do.

`Sym` is no subclass of `int`, as torch's `SymInt` is none: what C code takes for an integer it would take without asking. Here it
asks `__index__`, which records that the number is exactly this one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, gcd, inf, prod
from typing import Any, NamedTuple

Monomial = tuple[int, ...]
"""Numbers of the atoms that are multiplied, in order; none for the constant term."""
Terms = dict[Monomial, int]
Key = frozenset[tuple[Monomial, int]]


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
                low, high = low * atom.low, _product(high, atom.high)
            ends = _product(coefficient, low), _product(coefficient, high)
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
        shortest: Monomial = min(terms, key=_order)
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


def _product(a: float, b: float) -> float:
    return 0.0 if not a or not b else a * b


def _times(a: Terms, b: Terms) -> Terms:
    made: Terms = {}
    for m, c in a.items():
        for n, d in b.items():
            both = tuple(sorted(m + n)) if m and n else m or n
            made[both] = made.get(both, 0) + c * d
    return {m: c for m, c in made.items() if c}


def _sum(a: Terms, b: Terms, sign: int = 1) -> Terms:
    made = dict(a)
    for m, c in b.items():
        total = made.get(m, 0) + sign * c
        if total:
            made[m] = total
        else:
            made.pop(m, None)
    return made


def _quotient(a: Terms, b: Terms) -> Terms | None:
    """The polynomial that `b` is to be multiplied with to give `a`, if there is one."""
    first = max(b, key=_order)
    found: Terms = {}
    while a:
        top = max(a, key=_order)
        left = list(top)
        for at in first:
            if at not in left:
                return None
            left.remove(at)
        if a[top] % b[first]:
            return None
        factor = {tuple(left): a[top] // b[first]}
        found = _sum(found, factor)
        a = _sum(a, _times(factor, b), -1)
    return found


def _order(monomial: Monomial) -> tuple[int, Monomial]:
    return len(monomial), monomial


class Sym:
    """A whole number that varies: a polynomial, and its value (`hint`) where the run is made."""

    __slots__ = ("_key", "hint", "terms", "trace")

    def __init__(self, trace: Trace, terms: Terms, hint: int):
        self.trace, self.terms, self.hint = trace, terms, hint
        self._key: Key | None = None

    @property
    def key(self) -> Key:
        if self._key is None:
            self._key = frozenset(self.terms.items())
        return self._key

    def _terms(self, other: Any) -> tuple[Terms, int] | None:
        """Another operand, if it is a whole number, and not one of another run."""
        if isinstance(other, Sym):
            return (other.terms, other.hint) if other.trace is self.trace else None
        if isinstance(other, int):
            return ({(): int(other)} if other else {}), int(other)
        return None

    def real(self) -> Real:
        """This number as one that may have a fraction."""
        return Real(self.trace, ("whole", self.key), float(self.hint))

    # Arithmetic.

    def __add__(self, other: Any) -> Any:
        found = self._terms(other)
        if found is None:
            return _with_real(self, other, "add")
        return self.trace.number(_sum(self.terms, found[0]), self.hint + found[1])

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        found = self._terms(other)
        if found is None:
            return _with_real(self, other, "sub")
        return self.trace.number(_sum(self.terms, found[0], -1), self.hint - found[1])

    def __rsub__(self, other: Any) -> Any:
        if isinstance(other, float):
            return other - self.real()
        return -(self - other)

    def __neg__(self) -> Any:
        return Sym(self.trace, {m: -c for m, c in self.terms.items()}, -self.hint)

    def __pos__(self) -> Sym:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __mul__(self, other: Any) -> Any:
        found = self._terms(other)
        if found is None:
            if isinstance(other, list | tuple | str):
                return other * self.__index__()
            return _with_real(self, other, "mul")
        if type(other) is int:
            made = {m: c * other for m, c in self.terms.items()} if other else {}
        else:
            made = _times(self.terms, found[0])
        return self.trace.number(made, self.hint * found[1])

    __rmul__ = __mul__

    def __pow__(self, other: int) -> Any:
        made: Any = 1
        for _ in range(other):
            made = made * self
        return made

    def __floordiv__(self, other: Any) -> Any:
        found = self._terms(other)
        return NotImplemented if found is None else _floordiv(self.trace, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _floordiv(self.trace, other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return self - (self // other) * other

    def __rmod__(self, other: Any) -> Any:
        return other - (other // self) * self

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return self.real() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.real()

    def __round__(self) -> Sym:
        return self

    __ceil__ = __floor__ = __trunc__ = __round__

    def bit_length(self) -> Sym:
        """As of an `int`."""
        return self.trace.function("bit_length", self.hint.bit_length(), 0, inf, self)

    def __rlshift__(self, other: int) -> Sym:
        return self.trace.function("shift", other << self.hint, 1 if other > 0 else -inf, inf, other, self)

    # Decisions.

    def _compared(self, other: Any, strictly: bool, sign: int) -> Any:
        found = self._terms(other)
        if found is None:
            if isinstance(other, float | Real):
                return self.real()._compared(other, strictly, sign)
            return NotImplemented
        terms = _sum(self.terms, found[0], -1) if sign > 0 else _sum(found[0], self.terms, -1)
        difference = sign * (self.hint - found[1])
        if not terms:
            return not strictly
        return self.trace.positive(terms, difference, strictly)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, True, 1)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, False, 1)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, True, -1)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, False, -1)

    def __eq__(self, other: Any) -> Any:
        found = self._terms(other)
        if found is None:
            return self.real() == other if isinstance(other, float | Real) else NotImplemented
        terms = _sum(self.terms, found[0], -1)
        return not terms or self.trace.zero(terms, self.hint - found[1])

    def __ne__(self, other: Any) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __bool__(self) -> bool:
        return not self.trace.zero(self.terms, self.hint)

    def __hash__(self) -> int:
        """Of the expression: numbers that are equal by chance at one point are two in a dictionary."""
        return hash((id(self.trace), self.key))

    def __index__(self) -> int:
        self.trace.zero(_sum(self.terms, {(): self.hint} if self.hint else {}, -1), 0)
        return self.hint

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def is_integer(self) -> bool:
        """As of an `int`."""
        return True

    def __repr__(self) -> str:
        """The number as it is at this point: for messages, on which nothing depends."""
        return str(self.hint)

    def __format__(self, how: str) -> str:
        return format(self.hint, how)


def _floordiv(trace: Trace, a: Any, b: Any) -> Any:
    """The quotient, rounded down. What divides is taken out: of b x + r it is x + r // b."""
    if isinstance(b, Sym):
        if not b:
            raise ZeroDivisionError("division by zero")
        exact = _quotient(a.terms if isinstance(a, Sym) else {(): a}, b.terms) if a else {}
        hint = (a.hint if isinstance(a, Sym) else a) // b.hint
        return _rounded(trace, a, b, hint) if exact is None else trace.number(exact, hint)
    if b < 0:
        return _floordiv(trace, -a, -b)
    hint, rest = a.hint // b, {m: c for m, c in a.terms.items() if c % b}
    whole = {m: c // b for m, c in a.terms.items() if not c % b}
    if not rest:
        return trace.number(whole, hint)
    if set(rest) == {()}:
        return trace.number(_sum(whole, {(): rest[()] // b} if rest[()] // b else {}), hint)
    factor = gcd(b, *rest.values())
    left = Sym(trace, {m: c // factor for m, c in rest.items()}, trace.at_hint(rest) // factor)
    quotient = left.hint // (b // factor)
    return _rounded(trace, left, b // factor, quotient) + trace.number(whole, hint - quotient)


def _rounded(trace: Trace, a: Any, b: Any, hint: int) -> Any:
    """A quotient as an atom: rounded up where its numerator is negative throughout, so that atoms are positive."""
    if isinstance(a, Sym) and trace.bounds(a.terms)[1] <= 0:
        return -trace.function("ceildiv", -hint, *_bounds_of_quotient(trace, -a, b, up=True), -a, b)
    return trace.function("floordiv", hint, *_bounds_of_quotient(trace, a, b, up=False), a, b)


def _bounds_of_quotient(trace: Trace, a: Any, b: Any, up: bool) -> tuple[float, float]:
    low, high = trace.bounds(a.terms) if isinstance(a, Sym) else (a, a)
    if low < 0:
        return -inf, inf
    if isinstance(b, Sym):
        return (1 if up and low > 0 else 0), inf
    return (-(-low // b) if up else low // b), (inf if high == inf else -(-high // b))


class Real:
    """A number with a fraction that varies: floating-point operations on whole numbers, in their order (`node`)."""

    __slots__ = ("hint", "node", "trace")

    def __init__(self, trace: Trace, node: Any, hint: float):
        self.trace, self.node, self.hint = trace, node, hint

    def _other(self, other: Any) -> Real | None:
        if isinstance(other, Real):
            return other
        if isinstance(other, Sym):
            return other.real()
        return Real(self.trace, float(other), float(other)) if isinstance(other, int | float) else None

    def _made(self, name: str, a: Real, b: Real | None, apply: Callable[[float, float], float]) -> Any:
        return NotImplemented if b is None else Real(self.trace, (name, a.node, b.node), apply(a.hint, b.hint))

    def __add__(self, other: Any) -> Any:
        return self._made("add", self, self._other(other), lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._made("sub", self, self._other(other), lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        given = self._other(other)
        return NotImplemented if given is None else given - self

    def __mul__(self, other: Any) -> Any:
        return self._made("mul", self, self._other(other), lambda a, b: a * b)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._made("div", self, self._other(other), lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> Any:
        given = self._other(other)
        return NotImplemented if given is None else given / self

    def __neg__(self) -> Any:
        return 0.0 - self

    def _whole(self, kind: str, hint: int) -> Sym:
        return self.trace.function(kind, hint, 0 if self.trace.never_negative(self.node) else -inf, inf, self.node)

    def __ceil__(self) -> Sym:
        return self._whole("ceil", ceil(self.hint))

    def __floor__(self) -> Sym:
        return self._whole("floor", floor(self.hint))

    def __round__(self, digits: int | None = None) -> Any:
        return self._whole("round", round(self.hint)) if digits is None else round(float(self), digits)

    def _compared(self, other: Any, strictly: bool, sign: int) -> Any:
        given = self._other(other)
        if given is None:
            return NotImplemented
        difference = self - given if sign > 0 else given - self
        return self.trace.compare_real(difference.node, difference.hint, ">" if strictly else ">=")

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, True, 1)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, False, 1)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, True, -1)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, False, -1)

    def __eq__(self, other: Any) -> Any:
        given = self._other(other)
        if given is None:
            return NotImplemented
        difference = self - given
        return self.trace.compare_real(difference.node, difference.hint, "==")

    def __hash__(self) -> int:
        return hash(self.node)

    def __bool__(self) -> bool:
        return bool(self != 0.0)

    def __float__(self) -> float:
        assert self == self.hint
        return self.hint

    def __int__(self) -> int:
        return int(float(self))

    def is_integer(self) -> bool:
        """As of a `float`."""
        return float(self).is_integer()

    def __repr__(self) -> str:
        return str(self.hint)

    def __format__(self, how: str) -> str:
        return format(self.hint, how)


def _with_real(whole: Sym, other: Any, name: str) -> Any:
    if not isinstance(other, float | Real):
        return NotImplemented
    real = whole.real()
    return {"add": real.__add__, "sub": real.__sub__, "mul": real.__mul__}[name](other)
