"""The plan: ways to run a training job that are best in money, time and memory left, on given hardware or on any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from datetime import date
from pathlib import Path
from typing import Any

from estimator.contract.answer import Versions
from estimator.contract.errors import InvalidValue, NotModelled
from estimator.contract.job import Hardware, Job
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import job_of
from estimator.hardware.parse import hardware_of
from estimator.pipeline.defaults import with_defaults
from estimator.planner import amounts
from estimator.planner.budget import MOST_GPUS
from estimator.planner.cases import Own
from estimator.planner.fleet import cards, sizes
from estimator.planner.levers import Levers, read_allowed, read_denied
from estimator.planner.plan_answer import Looked, Plan
from estimator.planner.plan_candidates import ENOUGH, STEP, Findings, Point
from estimator.planner.plan_pieces import Watch, rows, search_all
from estimator.planner.plan_rows import cheapest_row, quickest_row, roomiest_row, row
from estimator.planner.plan_search import PlanSearch, points
from estimator.planner.renting import Rentable, Within, rentable
from estimator.planner.ways import platform
from estimator.planner.which_answer import NotKnown
from estimator.specs.resolve import resolve
from estimator.timing.links import between_gpus

TOP = 12
"""Rows that are told in full, with what is near them."""


def plan(
    job: Job | Mapping[str, Any] | str | Path,
    *,
    on: str | Hardware | None = None,
    within: str | None = None,
    under: str | None = None,
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    keep_global_batch: bool = False,
    memory: str | None = None,
    max_gpus: int = MOST_GPUS,
    top: int | None = TOP,
    most: int | None = None,
    today: date | None = None,
    allow_files: bool = True,
    watch: Watch = lambda progress: None,
    executor: Executor | None = None,
) -> Plan:
    """The ways to train that none beats in money, time and memory left, each with why its neighbours are worse.

    `job`: as `estimate` takes it, or the path of a framework's file. `on`: hardware in place of the job's own; where neither
    says any, or it says "any", every card that is sold with `memory` (24GB, 24GB..80GB) and can be rented, up to `max_gpus` of
    it. `within`: 24h, 3d; `under`: $50 for the run, $2/h. `allow`: fields that may change though they change what is computed,
    with or without values (training.precision, training.optimizer=adamw-8bit); of other fields the only values beside the job's
    own. `deny`: fields, parts of a job, or values that are left out (offload, parallelism.strategy=ddp). `keep_global_batch`: a
    step has exactly the job's sequences; without it, where they do not divide, as many as do, and one for each GPU at least.
    `most`: candidates that are simulated at most. `watch` is told how far it is. `executor`: its workers share a search that is
    long; the answer is the same. An interrupt ends the search and keeps what was found. Raises `InvalidJob`, `NotModelled` and
    `UnknownName`.
    """
    given = job_of(job)
    if given.task != "train":
        raise NotModelled(
            "plans are of training; ask `willitfit which` what serves a model, `willitfit replicas` how many copies of it",
            "task",
        )
    limits = Within(None if within is None else amounts.hours(within), None if under is None else amounts.money(under))
    day, model = today or date.today(), resolve(given.model, allow_files)
    filled, _ = with_defaults(given, model.spec, model.stored)
    sequences = filled.training.micro_batch_size * filled.training.gradient_accumulation_steps * (filled.parallelism.data or 1)
    levers = Levers(given, model.spec, read_allowed(given, allow), read_denied(given, deny), keep_global_batch, sequences)
    hardware = given.hardware if on is None else Hardware() if _any(on) else hardware_of(on)
    unknown: dict[str, list[str]] = {}
    search = PlanSearch(given, levers, [], limits, allow_files, most)
    search.refuse_limits()
    try:
        search.points += _points(given, hardware, limits, day, memory, max_gpus, unknown)
        search_all(search, watch, executor)
    except KeyboardInterrupt:
        search.complete = False
    for why, names in unknown.items():
        search.found.unknown[why].extend(names)
    return _answer(search, model.name, top, executor)


def _any(on: str | Hardware) -> bool:
    return isinstance(on, str) and on.strip().lower() == "any"


def _points(
    job: Job, hardware: Hardware, limits: Within, today: date, memory: str | None, most: int, unknown: dict[str, list[str]]
) -> Iterator[Point]:
    """The hardware that is tried: what was given, or what can be rented."""
    rent = job.hardware.rent
    if limits.money is not None and rent.currency is None:
        rent = rent.model_copy(update={"currency": limits.money.currency})

    def offers(one: Hardware, name: str) -> list[Rentable]:
        return [] if one.owned is not None else rentable(one.model_copy(update={"rent": rent}), name, today)

    if hardware.gpu or hardware.memory or hardware.ram:
        if memory is not None:
            raise InvalidValue("is of hardware that is looked for, and some is given", "memory")
        yield from points([hardware], offers)
        return
    if not 1 <= most <= 2**17:
        raise InvalidValue(f"write a number from 1 to {2**17}, not {most}", "max_gpus")
    every = cards(None if memory is None else amounts.memory(memory))
    if not every:
        raise InvalidValue(f"no card is sold with {memory}; `willitfit gpus` lists them", "memory")
    own = Own(job, True)
    for card in every:
        for point in points((size.model_copy(update={"rent": rent}) for size in sizes(card, most)), offers):
            refused = own.refusal(platform(point.card), point.card)
            if refused is not None or not point.offers:
                unknown.setdefault(refused.why if refused else "its price is not known", []).append(card.name)
            else:
                yield point


def _answer(search: PlanSearch, model: str, top: int | None, executor: Executor | None) -> Plan:
    """All that none beats, the cheapest first, those that are quickest and roomiest among the rows."""
    found, counts = search.found, search.found.counts
    held = sorted(found.held, key=lambda one: (one.aims.money, one.aims.seconds, -one.aims.slack))
    best = [pick(held) for pick in (cheapest_row, quickest_row, roomiest_row)]
    first = [at for at in dict.fromkeys(best) if at is not None]
    shown = sorted([*first, *(at for at in range(len(held)) if at not in first)][:top] if top is not None else range(len(held)))
    try:
        told = rows(search, [held[at] for at in shown], executor)
    except KeyboardInterrupt:
        search.complete, told = False, [row(search, held[at], near=False) for at in shown]
    cheapest, quickest, roomiest = (None if at is None else shown.index(at) if at in shown else None for at in best)
    offer = next((one.seen.rented.offer for one in held if one.seen.rented is not None), None)
    return Plan(
        model=model,
        possible=True if held else None if found.unknown or not search.complete or _untried(found) else False,
        reason=_reason(search, len(held)),
        cheapest=cheapest,
        quickest=quickest,
        roomiest=roomiest,
        currency=None if offer is None else offer.currency,
        rows=told,
        found=len(held),
        looked=Looked(
            candidates=counts["candidates"],
            settled=counts["settled"],
            without_simulation=counts["settled"] - counts["simulated"] - counts["refused"],
            simulated=counts["simulated"],
            refused=counts["refused"],
            too_large=counts["too large"],
            beyond=counts["beyond"],
        ),
        complete=search.complete,
        unknown=[NotKnown(accelerators=list(dict.fromkeys(n)), verdict="unknown", why=why) for why, n in found.unknown.items()],
        assumptions=list(_assumptions(search)),
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _reason(search: PlanSearch, ways: int) -> str:
    found = search.found
    settled, candidates = found.counts["settled"], found.counts["candidates"]
    part = f" of the {settled:,} candidates of {candidates:,} that were settled" if settled < candidates else ""
    if ways:
        return f"{ways} ways are beaten by none{part}" if ways > 1 else f"one way beats all others{part}"
    if not search.complete:
        return f"ended before any was found that does it, with {settled:,} of {candidates:,} candidates settled"
    if not candidates and search.complete:
        exactly = " exactly" if search.levers.exact else ""
        return f"no layout has {search.levers.sequences:,} sequences in a step{exactly}, as the job has"
    if _untried(found):
        every = "every candidate"
        if found.nearest:
            every += " that may fit"
        elif found.counts["settled"] > found.counts["refused"]:
            every += " that may be within the limits"
        return f"{every} was refused: {found.refusals.most_common(1)[0][0]}"
    if found.counts["beyond"] or not found.nearest:
        return "what fits is beyond the limits"
    return f"nothing fits; nearest to it, {found.nearest[1]}"


def _untried(found: Findings) -> bool:
    """Whether nothing was simulated, and something refused that bounds had not left out: then nothing is known of what fits."""
    return bool(found.refusals) and not found.counts["simulated"]


def _assumptions(search: PlanSearch) -> Iterator[str]:
    batch = search.levers.sequences
    if search.levers.exact:
        yield f"a step has the job's {batch} sequences exactly"
    else:
        yield f"a step has the job's {batch} sequences, or fewer where they do not divide, and one for each GPU at least"
    yield f"what is left of a GPU counts in steps of {STEP:.0%}, and {STEP * ENOUGH:.0%} are as good as more"
    if any(point.offers for point in search.points):
        yield "prices: the cheapest offer in which a node's GPUs are together, whole instances, on demand unless the job says so"
    else:
        yield "no price is known: ways are compared by time and by what they leave"
    if len(search.points) == 1 and (card := search.points[0].card.accelerator) and search.points[0].extent.total > 1:
        yield from between_gpus(search.points[0].hardware, card)
    if any(one.seen.time is None for one in search.found.held):
        yield "how long a step takes is not known: ways are compared by what they leave"
    elif not search.processes:
        yield "the job does not say how much it processes: time and money are of a million tokens"
