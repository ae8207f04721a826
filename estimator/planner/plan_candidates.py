"""What a search for plans compares: hardware with its offers, candidates on it, what became of each, and which is better.

A candidate is beaten by a plan that costs no more, takes no longer, and leaves no less of each GPU. What is left counts in steps
of `STEP`, and beyond `ENOUGH` no more: so a quick and cheap plan that leaves enough beats all that is slower and dearer, however
much that leaves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from estimator.contract.answer import Time
from estimator.contract.job import Hardware
from estimator.contract.units import gib
from estimator.hardware.capacity import Capacity
from estimator.pipeline.judged import Judged
from estimator.planner.levers import STEPS, Extent, Settings, extent
from estimator.planner.renting import Rentable, Rented
from estimator.timing.run_length import Hours

STEP = 0.05
"""Share of what a GPU offers in whose steps what is left counts: what fragmentation may take (runtime/overheads.yaml)."""
ENOUGH = 3
"""Steps beyond which more left is no better: cached blocks find room in them (`ROOMY` of estimator.planner.budget)."""


class Point(NamedTuple):
    """Some hardware, what one GPU of it offers, and the offers that hold it."""

    hardware: Hardware
    card: Capacity
    offers: list[Rentable]

    @property
    def extent(self) -> Extent:
        return extent(self.hardware)

    @property
    def name(self) -> str | None:
        return self.card.accelerator.name if self.card.accelerator else None

    @property
    def hourly(self) -> float | None:
        """What an hour costs at least; None where no price is known."""
        return min((float(one.hourly) for one in self.offers), default=None)


class Aims(NamedTuple):
    """What is compared: seconds, of the run or of a million tokens, money, of the same, and steps that are left; 0: not known."""

    seconds: float
    money: float
    slack: int

    def beats(self, other: Aims) -> bool:
        """Whether it is better in nothing that the other is."""
        return self.seconds <= other.seconds and self.money <= other.money and self.slack >= other.slack


Rank = tuple[int, ...]
"""Of a candidate: numbers of its GPUs together, of its settings apart from what is done again, of its card, and of that."""


class Trial(NamedTuple):
    """Candidates that differ in nothing but their cards, of which as many are together: they share simulations. In any case there
    are bytes that are `kept`, of weights and states, and those of gradients; and `waits`, seconds of a sequence on the host."""

    points: list[tuple[int, Point]]
    family: Settings
    work: Settings
    kept: int
    gradients: int
    waits: float
    rank: Rank

    def least(self, saved: int) -> int:
        """Bytes that a GPU needs of which so many are saved when forward ends: gradients are made after that, and those of a
        micro-batch before are there already."""
        added = self.gradients if self.family[STEPS] > 1 else 0
        return self.kept + max(self.gradients, added + saved)

    @property
    def settings(self) -> Settings:
        return {**self.family, **self.work}


class Seen(NamedTuple):
    """What became of a candidate that was simulated. `left_bytes`: of the GPU, without what the allocator caches."""

    outcome: Literal["refused", "too large", "beyond", "unknown", "held"]
    why: str
    aims: Aims | None = None
    left_bytes: int = 0
    time: Time | None = None
    hours: Hours | None = None
    rented: Rented | None = None


class Contender(NamedTuple):
    """A candidate of which the allocator was not asked yet."""

    point: Point
    settings: Settings
    seen: Seen
    rank: Rank


class Held(NamedTuple):
    """A candidate that fits, and that none beats yet. `rank`: its place among all, which decides between those that are equal."""

    point: Point
    settings: Settings
    seen: Seen
    judged: Judged
    aims: Aims
    rank: Rank


@dataclass(slots=True)
class Findings:
    """What became of the candidates of a part of the search; parts put together in any order say the same of what is best."""

    held: list[Held] = field(default_factory=list)
    unknown: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    nearest: tuple[int, str] | None = None
    """Bytes that lack where fewest do, and what is said of it."""

    contenders: list[Contender] = field(default_factory=list)
    """What fits by its tensors, and is not beaten by what was best before."""

    def begun(self) -> Findings:
        """What a further part of the search begins with: what is best so far."""
        return Findings(held=[*self.held])

    def add(self, part: Findings) -> None:
        """What a part found."""
        self.counts += part.counts
        self.refusals += part.refusals
        for why, names in part.unknown.items():
            self.unknown[why] += names
        if part.nearest is not None:
            self.lacking(*part.nearest)
        self.contenders += part.contenders

    def hold(self, one: Held) -> None:
        """Keep a candidate if none beats it, in place of those that it beats."""
        if not self.beat(one.aims, one.rank):
            self.held = [*(other for other in self.held if not _beats(one, other.aims, other.rank)), one]

    def beat(self, aims: Aims, rank: Rank) -> bool:
        """Whether one of them beats a candidate that is at best so."""
        return any(_beats(one, aims, rank) for one in self.held)

    def lacking(self, nbytes: int, said: str) -> None:
        """Something does not fit by so much."""
        self.nearest = min(self.nearest or (nbytes, said), (nbytes, said))


def _beats(one: Held, aims: Aims, rank: Rank) -> bool:
    """Whether it beats a candidate that is at best so, or is as good and comes before it."""
    return one.aims.beats(aims) and (one.aims != aims or one.rank <= rank)


def lacking(point: Point, least: int, said: str) -> tuple[int, str]:
    """By how many bytes so much does not fit, and what is said of it."""
    lacking = least - (point.card.memory_bytes or 0)
    return lacking, f"{said} {gib(least)} on {gpus(point)}, {gib(lacking)} too much"


def gpus(point: Point) -> str:
    return f"{point.extent.total} x {point.name}" if point.name else f"{point.extent.total} GPUs"


def steps(left: int, offered: int) -> int:
    """Steps of what a GPU offers that are left, as far as they count."""
    return max(0, min(ENOUGH, int(left / offered / STEP))) if offered else 0
