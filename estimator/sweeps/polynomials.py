"""Polynomials with integer coefficients over numbered atoms, as dictionaries from monomials to coefficients."""

from __future__ import annotations

Monomial = tuple[int, ...]
"""Numbers of the atoms that are multiplied, in order; none for the constant term."""
Terms = dict[Monomial, int]
Key = frozenset[tuple[Monomial, int]]


def bounded_product(a: float, b: float) -> float:
    return 0.0 if not a or not b else a * b


def times(a: Terms, b: Terms) -> Terms:
    made: Terms = {}
    for m, c in a.items():
        for n, d in b.items():
            both = tuple(sorted(m + n)) if m and n else m or n
            made[both] = made.get(both, 0) + c * d
    return {m: c for m, c in made.items() if c}


def plus(a: Terms, b: Terms, sign: int = 1) -> Terms:
    made = dict(a)
    for m, c in b.items():
        total = made.get(m, 0) + sign * c
        if total:
            made[m] = total
        else:
            made.pop(m, None)
    return made


def exact_quotient(a: Terms, b: Terms) -> Terms | None:
    """The polynomial that `b` is to be multiplied with to give `a`, if there is one."""
    first = max(b, key=order)
    found: Terms = {}
    while a:
        top = max(a, key=order)
        left = list(top)
        for at in first:
            if at not in left:
                return None
            left.remove(at)
        if a[top] % b[first]:
            return None
        factor = {tuple(left): a[top] // b[first]}
        found = plus(found, factor)
        a = plus(a, times(factor, b), -1)
    return found


def order(monomial: Monomial) -> tuple[int, Monomial]:
    return len(monomial), monomial
