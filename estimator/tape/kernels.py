"""The kernels and the exchanges of a tape, equal ones counted together, and the kernels' arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from estimator.tape.float8 import SCALED_PRODUCT
from estimator.tape.tape import Tape, Traffic, Work

KEPT = 256
"""How many phases of tapes are remembered, the most recently used ones."""


def counted(works: Iterable[Work]) -> list[tuple[Work, int]]:
    """Each kernel, wherever it runs, with how often it does, all layers counted."""
    found: dict[tuple[object, ...], int] = {}
    for operation, flops, nbytes, form, phase, slot, repeated, _, late in works:
        alike = operation, flops, nbytes, form, phase, None, repeated, 0, late
        found[alike] = found.get(alike, 0) + (slot.total if slot else 1)
    return [(Work._make(alike), times) for alike, times in found.items()]


@lru_cache(maxsize=KEPT)
def kernels(tape: Tape, phase: str) -> list[tuple[Work, int]]:
    """Each kernel of a phase of a finished tape, and how often it runs in all passes that the phase stands for."""
    return counted(work for work in tape.work if work.phase == phase)


@lru_cache(maxsize=KEPT)
def exchanges(tape: Tape) -> list[tuple[Traffic, int]]:
    """Each exchange of a finished tape, wherever it is, with how often it is, all layers counted."""
    found: Counter[Traffic] = Counter()
    for one in tape.traffic:
        found[one._replace(slot=None, at=0)] += one.slot.total if one.slot else 1
    return [*found.items()]


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of a phase, all layers counted; `repeated` are those that recompute what forward did, `fp8` those
    of products in fp8."""

    total: int
    repeated: int
    fp8: int


def flops(tape: Tape, phase: str) -> Flops:
    """The arithmetic of a phase, of one micro-batch."""
    total = repeated = fp8 = 0
    passes = tape.passes(phase)
    for work, times in kernels(tape, phase):
        count = work.flops * times
        total += count
        repeated += count if work.repeated else 0
        fp8 += count if work.operation == SCALED_PRODUCT else 0
    return Flops(total // passes, repeated // passes, fp8 // passes)
