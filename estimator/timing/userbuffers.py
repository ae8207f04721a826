"""Exchanges of tensor parallelism that Transformer Engine's userbuffers hide beside a product (`tp_comm_overlap`).

With P seconds of the product and X of the exchange, each by itself, t ranks, c of one part of the product, and a share a of the
GPU that sending takes:

    ring        c + (t - 1) max(c, X / (t - 1))          a rank's tokens after the other's, while the next ones come
    pipelined   c + 3 max(X / 4, c + a X / 4) + X / 4    a fourth of the outputs after the other, sent on meanwhile
    bulk        max(X, P + a X)                          the product needs nothing of the exchange

What a step waits for is that less P. Methods of each product, and four parts: module/base.py (`initialize_ub`) and
common/comm_gemm_overlap/comm_gemm_overlap.cpp of Transformer Engine 2.11. Rings are copies by the GPU's own engines (`use_ce`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from estimator.tape.collectives import PIPELINED, RING
from estimator.tape.tape import Tape, Traffic, Work
from estimator.timing.exchange import Wires
from estimator.timing.kernels import Timer

SPLITS = 4
"""Parts of a product whose result is sent on (`num_splits`)."""


class Beside(NamedTuple):
    """An exchange next to a product: seconds of each by itself, on what kind of kernel they are spent, seconds of one of the
    product's `parts`; how the exchange is hidden, and how often it is in a pass."""

    name: str
    how: str
    kind: str
    product: float
    part: float
    parts: int
    exchange: float
    times: float

    def seen(self, products: float, exchanges: float, taken: float) -> float:
        """Seconds that a pass waits for it, with factors of the seconds of `products` and `exchanges`, and the share of the GPU
        that is `taken` by sending."""
        whole, part, sent = self.product * products, self.part * products, self.exchange * exchanges
        if self.how == RING:
            steps = self.parts - 1
            together = part + steps * max(part, sent / steps)
        elif self.how == PIPELINED:
            each = sent / self.parts
            together = part + (self.parts - 1) * max(each, part + taken * each) + each
        else:
            together = max(sent, whole + taken * sent)
        return self.times * max(0.0, together - whole)


def hidden_beside(tape: Tape, clock: Timer, wires: Wires, phase: str, passes: int) -> list[Beside]:
    """The exchanges of a phase that are next to a product, equal ones together; as often as in one of the `passes`."""
    products = [place for place, work in enumerate(tape.work) if work.phase == phase and work.form and work.flops]
    found: Counter[tuple[Traffic, Work]] = Counter()
    for one in tape.traffic:
        if one.phase != phase or not one.beside:
            continue
        next_one = bisect_left(products, one.at)
        work = tape.work[products[next_one - 1 if one.beside == PIPELINED else next_one]]
        found[one._replace(slot=None, at=0), work._replace(slot=None, source=0)] += one.slot.total if one.slot else 1
    return [_beside(one, work, clock, wires.seconds(one), times / passes) for (one, work), times in found.items()]


def _beside(one: Traffic, work: Work, clock: Timer, exchange: float, times: float) -> Beside:
    parts = {RING: one.ranks, PIPELINED: SPLITS}.get(one.beside, 1)
    kind, product = clock.kernel(work)
    part = clock.kernel(_part(work, parts, one.beside == RING))[1] if parts > 1 else product
    return Beside(f"{one.operation} ({one.group})", one.beside, kind, product, part, parts, exchange, times)


def _part(work: Work, parts: int, of_rows: bool) -> Work:
    """One of so many parts of a product: of its rows, or of its columns."""
    assert work.form
    (count, m, n, k), dtype = work.form
    left, right = count * m * k * dtype.itemsize, count * k * n * dtype.itemsize
    out = work.nbytes - left - right
    m, n = (-(-m // parts), n) if of_rows else (m, -(-n // parts))
    read = left // parts + right if of_rows else left + right // parts
    return work._replace(flops=work.flops // parts, nbytes=read + out // parts, form=((count, m, n, k), dtype))


def parted(traffic: Sequence[tuple[Traffic, int]]) -> list[tuple[Traffic, int]]:
    """Exchanges but for those that are next to a product."""
    return [(one, count) for one, count in traffic if not one.beside]
