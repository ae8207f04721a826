"""The rows of a plan: what is said of each way, and why what is near it is worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from estimator.contract.units import gib, money
from estimator.planner.levers import (
    KERNELS,
    LAYERS,
    LOSS,
    PIPELINE,
    STEPS,
    STRATEGIES,
    STRATEGY,
    Settings,
)
from estimator.planner.plan_answer import PlanNeighbour, PlanRow
from estimator.planner.plan_candidates import Held, Point, Seen
from estimator.planner.plan_search import PlanSearch, settings_of

SAME = 0.0005
"""Share by which two times are the same."""
HARDWARE = ("gpu", "gpus", "nodes")


def cheapest_row(held: Sequence[Held]) -> int | None:
    """The place of the cheapest; None where no price is known."""
    priced = [at for at, one in enumerate(held) if one.seen.rented is not None]
    return min(priced, key=lambda at: (held[at].aims.money, held[at].aims.seconds), default=None)


def quickest_row(held: Sequence[Held]) -> int | None:
    """The place of the quickest; None where no time is known."""
    timed = [at for at, one in enumerate(held) if one.seen.time is not None]
    return min(timed, key=lambda at: (held[at].aims.seconds, held[at].aims.money), default=None)


def roomiest_row(held: Sequence[Held]) -> int | None:
    """The place of the one that leaves the largest share of a GPU."""
    return max(range(len(held)), key=lambda at: _left(held[at]) / (held[at].judged.memory.capacity_bytes or 1), default=None)


def row(search: PlanSearch, held: Held, near: bool = True) -> PlanRow:
    """What is said of a way; `near`: with its neighbours."""
    point, seen, found = held.point, held.seen, held.judged
    time, rented = seen.time, seen.rented
    offer = None if rented is None else rented.offer
    hours = rented.hours if rented is not None and rented.hours is not None else seen.hours
    tokens = None if time is None else time.tokens_per_second
    million = None if rented is None or not tokens else rented.hourly / Decimal(str(tokens)) * 10**6 / 3600
    return PlanRow(
        changes=_changes(search, point, held.settings),
        accelerator=point.name,
        gpus=point.hardware.gpus,
        nodes=point.hardware.nodes,
        verdict="fits" if found.verdict.verdict == "fits" else "tight",
        total_bytes=found.memory.total_bytes,
        headroom_bytes=_left(held),
        offered_bytes=found.memory.capacity_bytes or 0,
        step_seconds=None if time is None else time.step_seconds,
        tokens_per_second=tokens,
        hours=None if hours is None else hours.value,
        provider=offer and offer.provider,
        instance=offer and offer.instance,
        kind=offer and offer.kind,
        region=offer and offer.region,
        instances=None if rented is None else rented.instances,
        price_per_hour=None if rented is None else money(rented.hourly),
        price_as_of=offer and offer.as_of.isoformat(),
        total=None if rented is None or rented.total is None else money(rented.total),
        million_tokens=None if million is None else money(million),
        neighbours=[_neighbour(search, held, *one) for one in _near(search, held)] if near else [],
        job=found.job.model_dump(mode="json", exclude_defaults=True),
    )


def _left(held: Held) -> int:
    memory = held.judged.memory
    return (memory.capacity_bytes or 0) - memory.total_bytes


def _changes(search: PlanSearch, point: Point, settings: Settings) -> dict[str, Any]:
    """What is otherwise than the job says, hardware that was looked for with it."""
    job, own = search.job, settings_of(search.job, settings)
    if own[STRATEGY] is None:
        own[STRATEGY] = STRATEGIES.get(job.training.implementation, STRATEGIES[""])[0]
    found = {name: value for name, value in settings.items() if value != own[name] and (name, value) != (STRATEGY, "none")}
    hardware = {f"hardware.{name}": getattr(point.hardware, name) for name in HARDWARE}
    return found | {name: value for name, value in hardware.items() if value != getattr(job.hardware, name.split(".")[1])}


def _lever(name: str) -> str:
    """Fields that change together have one name; that which follows from the others has none."""
    if name.startswith("offload.") and name != "offload.activations":
        return "offload"
    return {STEPS: "", LOSS: KERNELS, LAYERS: PIPELINE}.get(name, name)


def _near(search: PlanSearch, held: Held) -> Iterator[tuple[Point, Settings, dict[str, Any]]]:
    """Candidates that differ in one lever, and the same ones on the next fewer and the next more GPUs of the card."""
    for settings in _candidates(search, held.point):
        differs = {name for name, value in settings.items() if value != held.settings[name]}
        if len({_lever(name) for name in differs} - {""}) == 1:
            yield held.point, settings, {name: settings[name] for name in settings if name in differs}
    mine = held.point.extent
    alike = sorted((one for one in search.points if one.name == held.point.name), key=lambda one: one.extent.total)
    fewer = [one for one in alike if one.extent.total < mine.total][-1:]
    more = [one for one in alike if one.extent.total > mine.total][:1]
    for point in (*fewer, *more):
        same = (s for s in _candidates(search, point) if all(s[n] == v for n, v in held.settings.items() if _lever(n)))
        for found in islice(same, 1):
            yield point, found, {"hardware.gpus": point.hardware.gpus, "hardware.nodes": point.hardware.nodes}


def _candidates(search: PlanSearch, point: Point) -> Iterator[Settings]:
    for family in search.levers.families(point.extent):
        for work in search.levers.work(family):
            yield {**family, **work}


def _neighbour(search: PlanSearch, held: Held, point: Point, settings: Settings, changes: dict[str, Any]) -> PlanNeighbour:
    seen = search.look(point, settings)
    if seen.outcome == "refused":
        return _said(changes, None, f"refused: {seen.why}")
    if seen.outcome == "too large":
        return _said(changes, False, f"does not fit: {seen.why}", short_bytes=-seen.left_bytes)
    assert seen.aims is not None
    slower = None if seen.time is None or not held.aims.seconds else seen.aims.seconds / held.aims.seconds - 1
    dearer = None if seen.rented is None or held.seen.rented is None else seen.aims.money - held.aims.money
    worse = (slower or 0.0) > SAME or (dearer is not None and dearer > SAME * held.aims.money)
    left = None
    if seen.outcome == "held" and not worse:
        found = search.judged(point, settings)
        if not found.verdict.fits:
            short = max(0, found.memory.total_bytes - (found.memory.capacity_bytes or 0))
            return _said(changes, False, f"does not fit: {found.verdict.reason}", short_bytes=short)
        left = (found.memory.capacity_bytes or 0) - found.memory.total_bytes - _left(held)
    reason = _compared(held, seen, slower, dearer, left)
    return PlanNeighbour(
        changes=changes,
        fits=True,
        short_bytes=None,
        slower=slower,
        dearer=None if dearer is None else money(Decimal(repr(dearer))),
        slack_bytes=left,
        reason=f"{reason}; {seen.why}" if seen.outcome == "beyond" else reason,
    )


def _said(changes: dict[str, Any], fits: bool | None, reason: str, short_bytes: int | None = None) -> PlanNeighbour:
    return PlanNeighbour(
        changes=changes, fits=fits, short_bytes=short_bytes, slower=None, dearer=None, slack_bytes=None, reason=reason
    )


def _compared(held: Held, seen: Seen, slower: float | None, dearer: float | None, left: int | None) -> str:
    """Slower or quicker by how much, dearer or cheaper, and what is left."""
    said = []
    if slower is not None and abs(slower) > SAME:
        said.append(f"{'slower' if slower > 0 else 'quicker'} by {abs(slower):.1%}")
    if dearer is not None and abs(dearer) > SAME * held.aims.money:
        unit = seen.rented.offer.currency if seen.rented else ""
        of = "" if seen.hours is not None else " a million tokens"
        said.append(f"{'dearer' if dearer > 0 else 'cheaper'} by {money(Decimal(repr(abs(dearer))))} {unit}{of}")
    if left is not None and abs(left) >= 2**20:
        said.append(f"leaves {gib(abs(left))} {'less' if left < 0 else 'more'} of each GPU")
    return ", ".join(said) or "takes, costs and leaves the same"
