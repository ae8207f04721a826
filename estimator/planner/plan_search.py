"""The search for plans: every candidate on every hardware, but for those that bounds show to be beaten or too large.

A candidate is beaten by a plan that costs no more, takes no longer, and leaves no less of each GPU. What is left counts in steps
of `STEP`, and beyond `ENOUGH` no more: so a quick and cheap plan that leaves enough beats all that is slower and dearer, however
much that leaves. What is simulated tells the peak of tensors and the time; the caching allocator is asked only of what is then
not beaten.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NamedTuple

from estimator.contract.answer import Time
from estimator.contract.errors import Contradiction, InvalidJob, NotModelled
from estimator.contract.job import Hardware, Job, read_job
from estimator.contract.units import gib
from estimator.hardware.capacity import Capacity, capacity
from estimator.pipeline.judged import Judged, judge_run
from estimator.pipeline.run import Run, played
from estimator.pipeline.step_time import duration
from estimator.pipeline.whole_run import course_of, hours_of
from estimator.planner.levers import MICRO, STEPS, Extent, Levers, Settings, extent, no_more_work
from estimator.planner.numbers import with_values
from estimator.planner.plan_bounds import ROUNDING, Arithmetic, saved_bytes, weight_bytes
from estimator.planner.plan_saved import Saved
from estimator.planner.renting import NOT_KNOWN, Rentable, Rented, Within, cheapest
from estimator.timing.run_length import Hours

Watch = Callable[[int], None]
"""Told how many have been simulated."""
STEP = 0.05
"""Share of what a GPU offers in whose steps what is left counts: what fragmentation may take (runtime/overheads.yaml)."""
ENOUGH = 3
"""Steps beyond which more left is no better: cached blocks find room in them (`ROOMY` of estimator.planner.budget)."""
MILLION = 10**6


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


class Aims(NamedTuple):
    """What is compared: seconds, of the run or of a million tokens, money, of the same, and steps that are left; 0: not known."""

    seconds: float
    money: float
    slack: int

    def beats(self, other: Aims) -> bool:
        """Whether it is better in nothing that the other is."""
        return self.seconds <= other.seconds and self.money <= other.money and self.slack >= other.slack


class Seen(NamedTuple):
    """What became of a candidate that was simulated. `left_bytes`: of the GPU, without what the allocator caches."""

    outcome: Literal["refused", "too large", "beyond", "unknown", "held"]
    why: str
    aims: Aims | None = None
    left_bytes: int = 0
    time: Time | None = None
    hours: Hours | None = None
    rented: Rented | None = None


class Held(NamedTuple):
    """A candidate that fits, and that none beats yet."""

    point: Point
    settings: Settings
    seen: Seen
    judged: Judged
    aims: Aims


Key = tuple[int, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class PlanSearch:
    """What is tried, and what was found. `most`: candidates that may be simulated; None for any number."""

    job: Job
    levers: Levers
    points: list[Point]
    limits: Within
    allow_files: bool
    most: int | None = None
    bounded: bool = True
    """False: nothing is left out by a bound, to see that bounds lose nothing."""
    held: list[Held] = field(default_factory=list)
    unknown: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    nearest: tuple[int, str] | None = None
    """Bytes that lack where fewest do, and what is said of it."""
    complete: bool = True
    arithmetic: Arithmetic = field(init=False)
    saved: Saved = field(init=False)
    kinds: set[tuple[object, ...]] = field(default_factory=set)
    """Kinds of candidates that were refused."""
    known: dict[Key, Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arithmetic = Arithmetic(self.job, self.allow_files)
        self.saved = Saved(self.job, self.levers.spec, self.allow_files)

    def refuse_limits(self) -> None:
        """Refuse limits of a run whose length is not known."""
        for name, given in (("within", self.limits.hours), ("under", self.limits.money and not self.limits.money.hourly)):
            if given and not self.processes:
                raise Contradiction("needs the length of the run: say how many tokens it processes, in training.tokens", name)

    def run(self, watch: Watch) -> None:
        """Try every candidate, those of hardware that has as many GPUs together: they share simulations."""
        groups: dict[Extent, list[Point]] = defaultdict(list)
        for point in self.points:
            groups[point.extent].append(point)
        for size, points in sorted(groups.items(), key=lambda one: -one[0].total):
            points.sort(key=self._promise)
            for family in self.levers.families(size):
                for point in points:
                    self._family(point, family, watch)
                    if self.most is not None and self.counts["simulated"] >= self.most:
                        self.complete = False
                        return

    def _promise(self, point: Point) -> tuple[float, str]:
        """Hardware that may do most for its money comes first."""
        peak = max((fact.value for fact in point.card.accelerator.peak.values()), default=1.0) if point.card.accelerator else 1.0
        hourly = min((one.hourly for one in point.offers), default=None)
        return (inf if hourly is None else float(hourly) / peak, point.name or "")

    def _family(self, point: Point, family: Settings, watch: Watch) -> None:
        """Candidates that differ in how much they compute twice or copy; each takes as long at least as those with less of it."""
        work = self.levers.work(family)
        self.counts["candidates"] += len(work)
        room, seconds, kept = point.card.memory_bytes, 0.0, 0
        if self.bounded and room:
            kept = weight_bytes(self.job, self.levers.spec, family, point.extent)
            seconds = 0.0 if kept > room else self._least_seconds(point, family)
        took: list[tuple[Settings, float]] = []
        for one in work:
            if self.bounded and self._hopeless(point, family, one, kept, max([seconds, *_less(took, one)])):
                continue
            seen = self.look(point, {**family, **one})
            self.counts["simulated"] += 1
            watch(self.counts["simulated"])
            if seen.aims is not None and self.bounded:
                took.append((one, seen.aims.seconds))
            if seen.outcome == "refused":
                self.kinds.add(self._kind(point, family | one))
            if seen.outcome == "held":
                self._hold(point, {**family, **one}, seen)

    def _hopeless(self, point: Point, family: Settings, work: Settings, kept: int, seconds: float) -> bool:
        """Whether a candidate is too large, beaten, beyond the limits, or refused, as one that is like it was."""
        slack, room = ENOUGH, point.card.memory_bytes
        if room:
            least = kept + saved_bytes(self.job, self.levers.spec, family, work)
            if least > room:
                self._lacking(point, least - room, f"what each GPU keeps in any case takes {gib(least)}")
                return True
            slack = steps(room - least, room)
        if self._beaten(self._bound(point, seconds, slack)) or self._kind(point, family | work) in self.kinds:
            return True
        if not room:
            return False
        least = kept + family[MICRO] * self.saved.sequence_bytes(family | work, point.card)
        if least > room:
            self._lacking(point, least - room, f"what each GPU keeps in any case takes {gib(least)}")
            return True
        return self._beaten(self._bound(point, seconds, steps(room - least, room)))

    def _kind(self, point: Point, settings: Settings) -> tuple[object, ...]:
        """What a refusal depends on: all but how many sequences there are, and which of some cards that are alike."""
        others = (str(value) for name, value in settings.items() if name not in (MICRO, STEPS))
        return point.extent, point.card.compute_capability, settings[MICRO] > 1, settings[STEPS] > 1, *others

    def _least_seconds(self, point: Point, family: Settings) -> float:
        """Seconds of the run, or of a million tokens, that it takes at least."""
        each = self.arithmetic.seconds(family, point.extent, point.card.accelerator)
        training = self.job.training
        length = float(family.get("training.sequence_length", training.mean_length))
        if training.tokens is not None:
            return each * float(training.tokens) / length
        if (rows := training.dataset) is not None:
            return each * (rows.rows * rows.row_tokens / length if rows.packed else rows.rows) * rows.epochs
        return each * MILLION / length

    def _bound(self, point: Point, seconds: float, slack: int) -> Aims:
        hourly = min((one.hourly for one in point.offers), default=None)
        return Aims(seconds, 0.0 if hourly is None else float(hourly) * seconds / 3600 * (1 - ROUNDING), slack)

    def _beaten(self, aims: Aims) -> bool:
        """Whether a plan is better, or it is beyond the limits."""
        most, amount = self.limits
        late = most is not None and aims.seconds > most * 3600
        dear = amount is not None and not amount.hourly and aims.money > float(amount.amount)
        return late or dear or any(one.aims.beats(aims) for one in self.held)

    @property
    def processes(self) -> bool:
        """Whether it is said how much the run processes, so that it has a length."""
        return self.job.training.tokens is not None or self.job.training.dataset is not None

    def job_on(self, point: Point, settings: Settings) -> Job:
        """The job with these settings on some hardware; degrees that follow are left to follow."""
        asked = with_values(self.job.model_copy(update={"hardware": point.hardware}), settings)
        for name in ("data", "replicas"):
            asked["parallelism"].pop(name, None)
        return read_job(asked)

    def look(self, point: Point, settings: Settings) -> Seen:
        """A candidate, simulated; remembered."""
        key = self.points.index(point), tuple((name, str(value)) for name, value in settings.items())
        if key not in self.known:
            self.known[key] = seen = self._look(point, settings)
            self.counts[seen.outcome] += 1
            if seen.outcome == "refused":
                self.refusals[seen.why] += 1
        return self.known[key]

    def _look(self, point: Point, settings: Settings) -> Seen:
        try:
            run = played(self.job_on(point, settings), self.allow_files)
            time = duration(run.job, run.model.spec, run.place, run.card, run.simulation)
        except (InvalidJob, NotModelled) as error:
            return Seen("refused", str(error))
        hours = hours_of(run.job, course_of(run, time))
        rented = cheapest(point.offers, hours)
        aims = self._aims(run, time, hours, rented)
        needed, offered = run.simulation.phases.peak.peak_bytes + run.beside.total_bytes, run.card.memory_bytes or 0
        left = offered - needed
        rest = (left, time, hours, rented)
        if left < 0:
            self._lacking(point, -left, f"{gib(needed)} needed at the peak")
            return Seen("too large", f"{gib(-left)} more than the {gib(offered)} that one GPU offers", aims, *rest)
        aims = aims._replace(slack=steps(left, offered))
        if (why := self._beyond(hours, rented)) is not None:
            outcome: Literal["beyond", "unknown"] = "beyond" if why else "unknown"
            if not why:
                self.unknown["it fits, but how long the run takes, or what it costs, is not known"].append(point.name or "")
            return Seen(outcome, why, aims, *rest)
        if len(self.points) > 1 and time is None:
            self.unknown["it fits, but how long a step takes on it is not known"].append(point.name or "")
            return Seen("unknown", "how long a step takes is not known", aims, *rest)
        return Seen("held", "", aims, *rest)

    def _aims(self, run: Run, time: Time | None, hours: Hours | None, rented: Rented | None) -> Aims:
        if rented is not None and rented.hours is not None:
            hours = rented.hours
        if hours is not None:
            seconds, money = hours.value * 3600, rented.total if rented else None
            return Aims(seconds, 0.0 if money is None else float(money), 0)
        if time is None:
            return Aims(0.0, 0.0 if rented is None else float(rented.hourly), 0)
        seconds = MILLION / time.tokens_per_second
        return Aims(seconds, 0.0 if rented is None else float(rented.hourly) * seconds / 3600, 0)

    def _beyond(self, hours: Hours | None, rented: Rented | None) -> str | None:
        """Why it is not within the limits; empty where that is not known, None where it is within them."""
        broken = self.limits.broken(rented, hours)
        if broken is None or broken == NOT_KNOWN:
            return None if broken is None else ""
        if broken.hours is not None:
            return f"takes {broken.hours:,.1f} h, more than {self.limits.hours:g} h"
        amount = self.limits.money
        assert amount is not None
        return f"costs {broken.paid:,.2f} {amount.currency}{' an hour' if amount.hourly else ''}, more than {amount.amount:,}"

    def _hold(self, point: Point, settings: Settings, seen: Seen) -> None:
        """Ask the allocator of what is not beaten without it, and hold what is not beaten with it."""
        assert seen.aims is not None
        if any(one.aims.beats(seen.aims) for one in self.held):
            return
        found = self.judged(point, settings)
        if not found.verdict.fits:
            self.counts["too large"] += 1
            self._lacking(point, 0, found.verdict.reason)
            return
        offered = found.memory.capacity_bytes or 0
        aims = seen.aims._replace(slack=steps(offered - found.memory.total_bytes, offered))
        if any(one.aims.beats(aims) for one in self.held):
            return
        self.held = [one for one in self.held if not aims.beats(one.aims)]
        self.held.append(Held(point, settings, seen, found, aims))

    def judged(self, point: Point, settings: Settings) -> Judged:
        """What `estimate` says of a candidate's memory, the allocator's blocks included."""
        return judge_run(played(self.job_on(point, settings), self.allow_files))

    def _lacking(self, point: Point, lacking: int, said: str) -> None:
        if self.nearest is None or lacking < self.nearest[0]:
            hardware = point.hardware
            gpus = f"{hardware.gpus * hardware.nodes} x {point.name}" if point.name else f"{hardware.gpus * hardware.nodes} GPUs"
            self.nearest = lacking, f"{said} on {gpus}{f', {gib(lacking)} too much' if lacking else ''}"


def _less(took: list[tuple[Settings, float]], work: Settings) -> Iterator[float]:
    """Seconds of what takes no longer than this."""
    return (seconds for other, seconds in took if no_more_work(other, work))


def steps(left: int, offered: int) -> int:
    """Steps of what a GPU offers that are left, as far as they count."""
    return max(0, min(ENOUGH, int(left / offered / STEP))) if offered else 0


def points(every: Iterable[Hardware], offers: Callable[[Hardware, str], list[Rentable]]) -> Iterator[Point]:
    """Hardware with its capacity, and what can be rented of it."""
    for hardware in every:
        card = capacity(hardware)
        yield Point(hardware, card, offers(hardware, card.accelerator.name) if card.accelerator else [])


def settings_of(job: Job, settings: Settings) -> dict[str, Any]:
    """What a job says of the same fields."""
    found: dict[str, Any] = {}
    for name in settings:
        part, last = name.split(".")
        found[name] = getattr(getattr(job, part), last)
    return found
