"""How long one pass of a phase takes on a GPU: kernels one after another, and meanwhile what ranks exchange.

While an exchange is hidden behind kernels, NCCL's own kernel takes some of the multiprocessors from these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from estimator.tape.kernels import exchanges, kernels
from estimator.tape.tape import HOST, SAVED, Tape
from estimator.timing.exchange import Wires, exchanged
from estimator.timing.host import COPIES, NONE, Three, copied
from estimator.timing.kernels import Timer, spent
from estimator.timing.userbuffers import Beside, hidden_beside, parted

LAUNCHES = "launching kernels"
"""Time in which the GPU waits for the host to launch the next kernel."""
GAPS = "between kernels"
"""What a step takes beyond the sum of its kernels, each measured by itself."""

Parts = dict[str, float]
"""Seconds by what they go to."""


class Case(NamedTuple):
    """What is assumed: factors of the curves' seconds by kind of kernel, and of exchanges; what is between kernels, as a share of
    their time; seconds that the host takes to launch one; the share of the GPU that an exchange takes while it is hidden, None
    where nothing is; and which of three seconds, at least, expected or at most, what goes through the host takes."""

    factors: Mapping[str, float]
    exchange: float
    gaps: float
    launch: float
    taken: float | None
    host: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds of kernels by kind, kernels, and seconds of exchanges: those that are `hidden` behind kernels, of which `last` has
    nothing left to hide behind, those that are each `beside` a product, and the others. Through the host go `copies` while
    kernels run, and what is `waited` for."""

    kernels: Parts
    launches: float
    hidden: Parts
    exposed: Parts
    last: float
    copies: Three = NONE
    waited: Mapping[str, Three] = field(default_factory=dict)
    beside: tuple[Beside, ...] = ()

    def parts(self, case: Case) -> Parts:
        """What the time goes to."""
        found = {kind: seconds * case.factors[kind] for kind, seconds in self.kernels.items()}
        found[GAPS] = case.gaps * sum(found.values())
        computing = sum(found.values())
        found[LAUNCHES] = max(0.0, self.launches * case.launch - computing)
        computing += found[LAUNCHES]
        hidden = sum(self.hidden.values()) * case.exchange
        if hidden:
            seen = hidden
            if case.taken is not None:
                seen = max(hidden, computing + case.taken * hidden) - computing + self.last * case.exchange
            for name, seconds in self.hidden.items():
                found[name] = seen * seconds * case.exchange / hidden
        for name, seconds in self.exposed.items():
            found[name] = found.get(name, 0.0) + seconds * case.exchange
        for one in self.beside:
            seen = one.times * one.exchange * case.exchange
            if case.taken is not None:
                seen = one.seen(case.factors[one.kind], case.exchange, case.taken)
            found[one.name] = found.get(one.name, 0.0) + seen
        if (left := self.copies[case.host] - computing) > 0:
            found[COPIES] = left
        for name, three in self.waited.items():
            found[name] = found.get(name, 0.0) + three[case.host]
        return found

    def fetching(self, files: Three) -> Pass:
        """This pass with copies that come from files first: each takes as long as the slower of the two."""
        low, expected, high = (max(pair) for pair in zip(self.copies, files, strict=True))
        return replace(self, copies=(low, expected, high))

    def without(self, operation: str) -> Pass:
        """All but the exchanges of an operation."""
        exposed = {name: seconds for name, seconds in self.exposed.items() if not name.startswith(operation)}
        return replace(self, exposed=exposed)


def phase(tape: Tape, clock: Timer, wires: Wires, hidden: frozenset[str], name: str, userbuffers: bool = False) -> Pass:
    """One pass of a phase. `hidden`: groups whose exchanges overlap with kernels; `userbuffers`: so do those next to products."""
    times = tape.passes(name)
    computed = spent(kernels(tape, name), clock, times)
    traffic = exchanges(tape)
    moved = exchanged(parted(traffic) if userbuffers else traffic, wires, name, times)
    named = {kind: f"{kind[0]} ({kind[1]})" for kind in moved.seconds}
    return Pass(
        dict(computed.seconds),
        computed.kernels,
        {named[kind]: seconds for kind, seconds in moved.seconds.items() if kind[1] in hidden},
        {named[kind]: seconds for kind, seconds in moved.seconds.items() if kind[1] not in hidden},
        moved.longest(hidden),
        copied(tape, name, HOST, times, clock.card),
        {COPIES: copied(tape, name, SAVED, times, clock.card)},
        tuple(hidden_beside(tape, clock, wires, name, times)) if userbuffers else (),
    )


def total(many: Iterable[tuple[float, Parts]]) -> Parts:
    """The sum of several times as many parts."""
    found: defaultdict[str, float] = defaultdict(float)
    for times, parts in many:
        for name, seconds in parts.items():
            found[name] += times * seconds
    return dict(found)
