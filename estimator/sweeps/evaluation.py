"""Expressions of a symbolic run, evaluated at many points at once.

Fields are arrays of whole numbers that broadcast against each other; what depends on one field only is computed once per value
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from estimator.sweeps.polynomials import Monomial, Terms
from estimator.sweeps.trace import Atom, Guard

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Evaluation:
    """Expressions over these atoms where the fields have these values."""

    def __init__(self, atoms: list[Atom], fields: Mapping[str, Array]):
        self.atoms, self.fields = atoms, fields
        self._atoms: dict[int, Array] = {}
        self._monomials: dict[Monomial, Array] = {}

    def polynomial(self, terms: Terms) -> Array:
        """Whole numbers."""
        import numpy as np

        total: Array = np.asarray(np.int64(0))
        for monomial, coefficient in terms.items():
            total = np.asarray(total + np.int64(coefficient) * self.monomial(monomial))
        return total

    def monomial(self, monomial: Monomial) -> Array:
        """A product of atoms."""
        import numpy as np

        if monomial not in self._monomials:
            self._monomials[monomial] = reduce(lambda a, b: a * b, (self._atom(at) for at in monomial), np.asarray(np.int64(1)))
        return self._monomials[monomial]

    def holds(self, guard: Guard) -> Array:
        """Where a guard is true."""
        import numpy as np

        given = guard.expression
        value = self.polynomial(given) if isinstance(given, dict) else self._real(given)
        compare = {"==": np.equal, "!=": np.not_equal, ">": np.greater, ">=": np.greater_equal}[guard.relation]
        return np.asarray(compare(value, 0))

    def _atom(self, at: int) -> Array:
        if at not in self._atoms:
            self._atoms[at] = self._computed(self.atoms[at])
        return self._atoms[at]

    def _computed(self, atom: Atom) -> Array:
        import numpy as np

        if atom.kind == "field":
            return self.fields[atom.operands[0]]
        if atom.kind in ("ceil", "floor", "round"):
            rounds = {"ceil": np.ceil, "floor": np.floor, "round": np.rint}[atom.kind]
            return np.asarray(rounds(self._real(atom.operands[0]))).astype(np.int64)
        operands = [self.polynomial(one) if isinstance(one, dict) else np.asarray(np.int64(one)) for one in atom.operands]
        if atom.kind == "ceildiv":
            return np.asarray(-(-operands[0] // operands[1]))
        if atom.kind == "floordiv":
            return np.asarray(operands[0] // operands[1])
        if atom.kind == "shift":
            return np.asarray(operands[0] << operands[1])
        assert atom.kind == "bit_length"
        return _bit_length(operands[0])

    def _real(self, node: Any) -> Array:
        import numpy as np

        if isinstance(node, float):
            return np.asarray(node)
        if node[0] == "whole":
            return self.polynomial(dict(node[1])).astype(np.float64)
        apply = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide}[node[0]]
        return np.asarray(apply(self._real(node[1]), self._real(node[2])))


def _bit_length(value: Array) -> Array:
    """As `int.bit_length`, bit by bit."""
    import numpy as np

    found, left = np.zeros_like(value), np.abs(value)
    while left.any():
        found += left > 0
        left = left >> 1
    return found


def fields_of(atoms: list[Atom], expression: Any) -> set[str]:
    """The fields on which an expression depends."""
    if isinstance(expression, int | float | str):
        return set()
    if isinstance(expression, dict):
        return set().union(*[fields_of(atoms, atoms[at]) for monomial in expression for at in monomial])
    if isinstance(expression, Atom):
        if expression.kind == "field":
            return {expression.operands[0]}
        return set().union(*[fields_of(atoms, operand) for operand in expression.operands])
    if expression[0] == "whole":
        return fields_of(atoms, dict(expression[1]))
    return fields_of(atoms, expression[1]) | fields_of(atoms, expression[2])
