"""Numbers with a fraction that remember how they were computed."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any

from .varying import Varying

if TYPE_CHECKING:
    from .trace import Trace


class Real(Varying):
    """A number with a fraction that varies: floating-point operations on whole numbers, in their order (`node`)."""

    __slots__ = ("hint", "node", "trace")

    def __init__(self, trace: Trace, node: Any, hint: float):
        self.trace, self.node, self.hint = trace, node, hint

    def real(self) -> Real:
        """Itself."""
        return self

    def _other(self, other: Any) -> Real | None:
        if isinstance(other, Varying):
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

    def _whole(self, kind: str, hint: int) -> Any:
        return self.trace.function(kind, hint, 0 if self.trace.never_negative(self.node) else -inf, inf, self.node)

    def __ceil__(self) -> Any:
        return self._whole("ceil", ceil(self.hint))

    def __floor__(self) -> Any:
        return self._whole("floor", floor(self.hint))

    def __round__(self, digits: int | None = None) -> Any:
        return self._whole("round", round(self.hint)) if digits is None else round(float(self), digits)

    def _compared(self, other: Any, strictly: bool, sign: int) -> Any:
        given = self._other(other)
        if given is None:
            return NotImplemented
        difference = self - given if sign > 0 else given - self
        return self.trace.compare_real(difference.node, difference.hint, ">" if strictly else ">=")

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
