"""Whole numbers that remember how they were computed: what a symbolic run of a job counts with instead of integers.

A `Sym` is a polynomial with integer coefficients over *atoms*: the fields that vary, and what no polynomial says (a quotient
rounded up or down, a power of two). Arithmetic makes polynomials. Whatever turns a number into a decision (a comparison, a truth
value, an index) is answered for the point at which the run is made, and is recorded as a `Guard` (trace.py): the run holds
wherever all of its guards do.

`Sym` is no subclass of `int`, as torch's `SymInt` is none: what C code takes for an integer it would take without asking. Here it
asks `__index__`, which records that the number is exactly this one.
"""

from __future__ import annotations

from math import gcd, inf
from typing import TYPE_CHECKING, Any

from .polynomials import Key, Terms, exact_quotient, plus, times
from .real import Real
from .varying import Varying

if TYPE_CHECKING:
    from .trace import Trace


class Sym(Varying):
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
        return self.trace.number(plus(self.terms, found[0]), self.hint + found[1])

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        found = self._terms(other)
        if found is None:
            return _with_real(self, other, "sub")
        return self.trace.number(plus(self.terms, found[0], -1), self.hint - found[1])

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
            made = times(self.terms, found[0])
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
        terms = plus(self.terms, found[0], -1) if sign > 0 else plus(found[0], self.terms, -1)
        difference = sign * (self.hint - found[1])
        if not terms:
            return not strictly
        return self.trace.positive(terms, difference, strictly)

    def __eq__(self, other: Any) -> Any:
        found = self._terms(other)
        if found is None:
            return self.real() == other if isinstance(other, float | Real) else NotImplemented
        terms = plus(self.terms, found[0], -1)
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
        self.trace.zero(plus(self.terms, {(): self.hint} if self.hint else {}, -1), 0)
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
        exact = exact_quotient(a.terms if isinstance(a, Sym) else {(): a}, b.terms) if a else {}
        hint = (a.hint if isinstance(a, Sym) else a) // b.hint
        return _rounded(trace, a, b, hint) if exact is None else trace.number(exact, hint)
    if b < 0:
        return _floordiv(trace, -a, -b)
    hint, rest = a.hint // b, {m: c for m, c in a.terms.items() if c % b}
    whole = {m: c // b for m, c in a.terms.items() if not c % b}
    if not rest:
        return trace.number(whole, hint)
    if set(rest) == {()}:
        return trace.number(plus(whole, {(): rest[()] // b} if rest[()] // b else {}), hint)
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


def _with_real(whole: Sym, other: Any, name: str) -> Any:
    if not isinstance(other, float | Real):
        return NotImplemented
    real = whole.real()
    return {"add": real.__add__, "sub": real.__sub__, "mul": real.__mul__}[name](other)
