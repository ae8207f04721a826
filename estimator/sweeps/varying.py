"""What whole numbers that vary (`Sym`) and those with a fraction (`Real`) have in common: they are ordered, and can be both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .real import Real


class Varying:
    """A number that varies with the fields of a job."""

    __slots__ = ()

    def real(self) -> Real:
        """This number as one that may have a fraction."""
        raise NotImplementedError

    def _compared(self, other: Any, strictly: bool, sign: int) -> Any:
        """Whether it is above another number, or not below it; below and not above for a `sign` of -1."""
        raise NotImplementedError

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, True, 1)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, False, 1)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, True, -1)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, False, -1)
