"""Programs that are remembered per question, bounded by the bytes that they take."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from estimator.sweeps.structure import Program

MOST_BYTES = 64 << 20
"""Of all programs that are remembered."""


class Remembered:
    """Programs by question; the questions asked longest ago are forgotten first. Threads may share it."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._programs: OrderedDict[object, tuple[Program, ...]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all that is remembered, about."""
        return self._bytes

    def of(self, question: object) -> tuple[Program, ...]:
        """The programs of a question."""
        with self._lock:
            if question in self._programs:
                self._programs.move_to_end(question)
            return self._programs.get(question, ())

    def add(self, question: object, program: Program) -> None:
        """Remember another program of a question."""
        with self._lock:
            self._programs[question] = (*self._programs.get(question, ()), program)
            self._programs.move_to_end(question)
            self._bytes += program.nbytes
            while self._bytes > self.most_bytes and self._programs:
                _, forgotten = self._programs.popitem(last=False)
                self._bytes -= sum(each.nbytes for each in forgotten)

    def drop(self, question: object, program: Program) -> None:
        """Forget one program of a question."""
        with self._lock:
            kept = tuple(each for each in self._programs.get(question, ()) if each is not program)
            self._bytes -= program.nbytes * (len(self._programs.get(question, ())) - len(kept))
            self._programs[question] = kept

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._programs.clear()
            self._bytes = 0
