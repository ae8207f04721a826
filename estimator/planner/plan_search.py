"""The search for plans: every candidate on every hardware, but for those that bounds show to be beaten or too large.

What is simulated tells the peak of tensors and the time; the caching allocator is asked only of what is then not beaten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from estimator.contract.answer import Time
from estimator.contract.errors import Contradiction, InvalidJob, NotModelled
from estimator.contract.job import Hardware, Job, read_job
from estimator.contract.units import gib
from estimator.hardware.capacity import capacity
from estimator.pipeline.judged import Judged, judge_run
from estimator.pipeline.run import Run, played
from estimator.pipeline.step_time import duration
from estimator.pipeline.whole_run import course_of, hours_of
from estimator.planner.levers import MICRO, STEPS, Extent, Levers, Settings, no_more_work
from estimator.planner.numbers import with_values
from estimator.planner.plan_bounds import ROUNDING, Arithmetic, gradient_bytes, host_seconds, saved_bytes, weight_bytes
from estimator.planner.plan_candidates import (
    ENOUGH,
    Aims,
    Contender,
    Findings,
    Held,
    Point,
    Rank,
    Seen,
    Trial,
    gpus,
    lacking,
    steps,
)
from estimator.planner.plan_saved import Saved
from estimator.planner.renting import NOT_KNOWN, Rentable, Rented, Within, cheapest
from estimator.timing.run_length import Hours, least_hours

MILLION = 10**6


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
    found: Findings = field(default_factory=Findings)
    complete: bool = True
    arithmetic: Arithmetic = field(init=False)
    saved: Saved = field(init=False)
    known: dict[tuple[object, ...], Seen] = field(default_factory=dict)
    refused: dict[tuple[object, ...], Seen] = field(default_factory=dict)
    """The first of each kind of candidates that was refused."""

    def __post_init__(self) -> None:
        self.arithmetic = Arithmetic(self.job, self.allow_files)
        self.saved = Saved(self.job, self.levers.spec, self.allow_files)

    def refuse_limits(self) -> None:
        """Refuse limits of a run whose length is not known."""
        for name, given in (("within", self.limits.hours), ("under", self.limits.money and not self.limits.money.hourly)):
            if given and not self.processes:
                raise Contradiction("needs the length of the run: say how many tokens it processes, in training.tokens", name)

    def trials(self) -> list[Trial]:
        """All candidates, those first that may do most for their money and soonest, without those that are too large by what each
        GPU keeps in any case."""
        groups: dict[Extent, list[Point]] = defaultdict(list)
        for point in self.points:
            groups[point.extent].append(point)
        found: list[tuple[tuple[float, Rank], Trial]] = []
        for number, (size, points) in enumerate(sorted(groups.items(), key=lambda one: -one[0].total)):
            points.sort(key=_promise)
            for at, family in enumerate(self.levers.families(size)):
                kept, made, waits = self.in_any_case(family, size) if self.bounded else (0, 0, 0.0)
                for again, work in enumerate(self.levers.work(family)):
                    self.found.counts["candidates"] += len(points)
                    trial = self._trial(points, Trial([], family, work, kept, made, waits, (number, at, again)))
                    if trial is not None:
                        found.append(((_promise(trial.points[0][1])[0] / size.total, trial.rank), trial))
        return [trial for _, trial in sorted(found, key=lambda one: one[0])]

    def in_any_case(self, family: Settings, size: Extent) -> tuple[int, int, float]:
        """Bytes of weights and states, and of gradients, and seconds of a sequence for which the host is waited."""
        job, spec = self.job, self.levers.spec
        return (
            weight_bytes(job, spec, family, size),
            gradient_bytes(job, spec, family, size),
            host_seconds(job, spec, family, size),
        )

    def _trial(self, points: list[Point], trial: Trial) -> Trial | None:
        """Some settings on the hardware on which they may fit; None where that is none."""
        least = trial.least(saved_bytes(self.job, self.levers.spec, trial.family, trial.work) if self.bounded else 0)
        fit = [(at, one) for at, one in enumerate(points) if not one.card.memory_bytes or least <= one.card.memory_bytes]
        if len(fit) < len(points):
            self.found.counts["settled"] += len(points) - len(fit)
            roomiest = max(
                (one for one in points if (one.card.memory_bytes or least) < least), key=lambda one: one.card.memory_bytes or 0
            )
            self.found.lacking(*lacking(roomiest, least, "what each GPU keeps in any case takes"))
        return trial._replace(points=fit) if fit else None

    def settle(self, trials: Iterable[Trial], found: Findings, watch: Callable[[], None], most: int | None = None) -> bool:
        """Simulate what no bound leaves out; False where `most` were simulated before the end."""
        took: dict[tuple[object, ...], list[tuple[Settings, float]]] = defaultdict(list)
        for trial in trials:
            for at, point in trial.points:
                if most is not None and found.counts["simulated"] >= most:
                    return False
                rank = (*trial.rank[:2], at, trial.rank[2])
                before, kind = took[rank[:3]], self._kind(point, trial.settings)
                quickest = max(_less(before, trial.work), default=0.0)
                if not (self.bounded and self._hopeless(point, trial, found, rank, quickest)):
                    seen = self.refused.get(kind) or self.look(point, trial.settings)
                    self._note(point, trial, found, rank, seen)
                    if seen.outcome == "refused":
                        self.refused.setdefault(kind, seen)
                    if seen.aims is not None:
                        before.append((trial.work, seen.aims.seconds))
                    watch()
                found.counts["settled"] += 1
        return True

    def _note(self, point: Point, trial: Trial, found: Findings, rank: Rank, seen: Seen) -> None:
        """What became of a candidate."""
        found.counts["simulated"] += seen.outcome != "refused"
        found.counts[seen.outcome] += 1
        if seen.outcome == "refused":
            found.refusals[seen.why] += 1
        elif seen.outcome == "too large":
            found.lacking(*lacking(point, (point.card.memory_bytes or 0) - seen.left_bytes, "at its peak it needs"))
        elif seen.outcome == "unknown":
            found.unknown[seen.why].append(point.name or "")
        elif seen.outcome == "held":
            found.contenders.append(Contender(point, trial.settings, seen, rank))

    def _hopeless(self, point: Point, trial: Trial, found: Findings, rank: Rank, took: float) -> bool:
        """Whether a candidate is too large, beaten, or beyond the limits; what is quickly found is asked first.

        `took`: seconds of what takes no longer.
        """
        room, card, family = point.card.memory_bytes, point.card.accelerator, trial.family

        def beaten(each: float, least: int) -> bool:
            slack, seconds = steps(room - least, room) if room else ENOUGH, self._run_seconds(family, point, each + trial.waits)
            return self._beaten(self._bound(point, max(took, seconds), slack), found, rank)

        least = trial.least(saved_bytes(self.job, self.levers.spec, family, trial.work))
        if beaten(0.0, least) or beaten(self.arithmetic.at_peak(family, point.extent, card), least):
            return True
        if room:
            each = self.saved.sequence_bytes(trial.settings, point.card)
            least = max(least, trial.least(family[MICRO] * each))
            if least > room:
                found.lacking(*lacking(point, least, "what each GPU keeps in any case takes"))
                return True
        return beaten(self.arithmetic.seconds(trial.settings, point.extent, card), least)

    def _kind(self, point: Point, settings: Settings) -> tuple[object, ...]:
        """What a refusal depends on: all but how many sequences there are, and which of some cards that are alike."""
        others = (str(value) for name, value in settings.items() if name not in (MICRO, STEPS))
        return point.extent, point.card.compute_capability, settings[MICRO] > 1, settings[STEPS] > 1, *others

    def _run_seconds(self, family: Settings, point: Point, each: float) -> float:
        """Seconds of the run, or of a million tokens, at least, of which a sequence takes so many."""
        training = self.job.training
        length = float(family.get("training.sequence_length", training.mean_length))
        if training.tokens is not None:
            sequences = float(training.tokens) / length
        elif (rows := training.dataset) is not None:
            sequences = (rows.rows * rows.row_tokens / length if rows.packed else rows.rows) * rows.epochs
        else:
            return each * MILLION / length
        return least_hours(training, point.extent.total, each * sequences / 3600) * 3600 * (1 - ROUNDING)

    def _bound(self, point: Point, seconds: float, slack: int) -> Aims:
        hourly = point.hourly
        return Aims(seconds, 0.0 if hourly is None else hourly * seconds / 3600 * (1 - ROUNDING), slack)

    def _beaten(self, aims: Aims, found: Findings, rank: Rank) -> bool:
        """Whether a plan is better, or it is beyond the limits."""
        most, amount = self.limits
        late = most is not None and aims.seconds > most * 3600
        dear = amount is not None and not amount.hourly and aims.money > float(amount.amount)
        return late or dear or found.beat(aims, rank)

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
        key = point.name, *point.extent, *map(str, settings.values())
        if key not in self.known:
            self.known[key] = self._look(point, settings)
        return self.known[key]

    def _look(self, point: Point, settings: Settings) -> Seen:
        try:
            run = played(self.job_on(point, settings), self.allow_files)
            needed, offered = run.simulation.phases.peak.peak_bytes + run.beside.total_bytes, run.card.memory_bytes or 0
            left = offered - needed
            if left < 0:
                return Seen("too large", f"{gib(-left)} more than the {gib(offered)} that one GPU offers", None, left)
            time = duration(run.job, run.model.spec, run.place, run.card, run.simulation)
        except (InvalidJob, NotModelled) as error:
            return Seen("refused", str(error))
        hours = hours_of(run.job, course_of(run, time))
        rented = cheapest(point.offers, hours)
        aims = self._aims(run, time, hours, rented)._replace(slack=steps(left, offered))
        rest = (left, time, hours, rented)
        if (why := self._beyond(hours, rented)) is not None:
            said = "it fits, but how long the run takes, or what it costs, is not known"
            return Seen("beyond" if why else "unknown", why or said, aims, *rest)
        if len(self.points) > 1 and time is None:
            return Seen("unknown", "it fits, but how long a step takes on it is not known", aims, *rest)
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

    def confirm(self) -> None:
        """Ask the allocator of what is not beaten without it, and hold what is not beaten with it, the likeliest first."""
        found = self.found
        found.contenders.sort(key=lambda one: (_worth(one.seen), one.rank), reverse=True)
        while found.contenders:
            point, settings, seen, rank = found.contenders.pop()
            assert seen.aims is not None
            if found.beat(seen.aims, rank):
                continue
            judged = self.judged(point, settings)
            if not judged.verdict.fits:
                found.counts["too large"] += 1
                found.lacking(0, f"{judged.verdict.reason} on {gpus(point)}")
                continue
            offered = judged.memory.capacity_bytes or 0
            aims = seen.aims._replace(slack=steps(offered - judged.memory.total_bytes, offered))
            found.hold(Held(point, settings, seen, judged, aims, rank))

    def judged(self, point: Point, settings: Settings) -> Judged:
        """What `estimate` says of a candidate's memory, the allocator's blocks included."""
        return judge_run(played(self.job_on(point, settings), self.allow_files))


def _worth(seen: Seen) -> tuple[float, float]:
    """Seconds times money, and what is not left."""
    assert seen.aims is not None
    seconds, money, slack = seen.aims
    return seconds * (money or 1.0), -slack


def _promise(point: Point) -> tuple[float, str]:
    """Money for a peak's arithmetic: hardware that may do most for it comes first."""
    peak = max((fact.value for fact in point.card.accelerator.peak.values()), default=1.0) if point.card.accelerator else 1.0
    return (inf if point.hourly is None else point.hourly / peak, point.name or "")


def _less(took: list[tuple[Settings, float]], work: Settings) -> Iterator[float]:
    """Seconds of what takes no longer than this."""
    return (seconds for other, seconds in took if no_more_work(other, work))


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
