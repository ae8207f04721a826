"""The budget: every way to rent what a training job needs, by what it costs and how long it takes.

An offer is rented once; one with eight GPUs several times over, where fewer do not hold the job or take too long. The job's
batch is kept: its sequences are shared out over the GPUs, in micro-batches no larger than the job's; where there are more GPUs
than sequences, each gets one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from estimator.contract.answer import Time, Versions
from estimator.contract.errors import Contradiction, InvalidJob, NotModelled, WillItFitError, did_you_mean
from estimator.contract.job import Job
from estimator.contract.job.hardware import Rent
from estimator.contract.units import money
from estimator.contract.validation import validated
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.facts.spelling import LONGEST
from estimator.hardware.accelerator import accelerator
from estimator.pipeline.estimation import step_time
from estimator.pipeline.judged import fits
from estimator.planner.answers import Budget, BudgetRow
from estimator.planner.ways import HOURS
from estimator.pricing import spot
from estimator.pricing.cost import suiting_any
from estimator.pricing.offer import Offer, exact, run_cost
from estimator.pricing.prices import age_warning, offers, our_name
from estimator.timing.run_length import Hours

CLUSTER = 8
"""GPUs of an instance that is rented several times over."""
MOST_GPUS = 64
ROOMY = 0.15
"""Share of the card beyond the peak in which cached blocks find room."""
ASSUMPTIONS = [
    "the batch is the job's, or one sequence for each GPU where there are more of them; on several GPUs FSDP2, or the strategy "
    "that the job names",
    HOURS,
]


class Limits(NamedTuple):
    """What a run may cost, in the currency of the offers, how many hours it may take, and on how many GPUs."""

    cost: Decimal | None = None
    hours: float | None = None
    gpus: int = MOST_GPUS


class Timed(NamedTuple):
    """A job as it would run on some GPUs, and the time of its step."""

    job: Job
    time: Time
    hours: Hours


class Option(NamedTuple):
    """So many instances of an offer, the job on them, its hours there, and what they cost."""

    offer: Offer
    instances: int
    job: Job
    time: Time
    hours: Hours
    total: Decimal


def budget(job: Job, limits: Limits | None = None, today: date | None = None, rows: int = 20, allow_files: bool = True) -> Budget:
    """The cheapest ways to run a job, within the limits if there are any that are; else the nearest to them.

    Of `job.hardware` counts what may be rented: its GPU, if it names one, and `rent`. Raises `InvalidJob` for a job that does not
    say how much it processes, `NotModelled` for serving, and what `estimate` raises of a job that runs nowhere.
    """
    if job.task != "train":
        raise NotModelled("budgets are of training; estimate a served model on some hardware instead", "task")
    if job.training.tokens is None and job.training.dataset is None:
        raise Contradiction("is missing: say how many tokens the whole run processes, such as 1e9", "training.tokens")
    day, limit = today or date.today(), limits or Limits()
    if not suiting_any(job.hardware, day):
        rent = job.hardware.rent.model_dump(exclude_none=True)
        asked = " and ".join(value[:LONGEST] for value in (job.hardware.gpu, *rent.values()) if value)
        known = {name: {getattr(offer, name).lower() for offer in offers()} for name in rent}
        near = "".join(
            did_you_mean(value[:LONGEST], known[name]) for name, value in rent.items() if value.lower() not in known[name]
        )
        raise Contradiction(f"nothing that is {asked} can be rented; `willitfit prices` lists what can.{near}", "hardware.rent")
    search = _Search(job, limit, day, allow_files)
    options = sorted(search.options(), key=lambda one: (one.total, one.hours.value))
    if search.refused and not options and not search.too_small:
        raise search.refused
    found = list(_confirmed([one for one in options if _within(one, limit)], rows, allow_files))
    nearest = [] if found else _nearest(options, allow_files)
    return Budget(
        possible=bool(found),
        reason=_reason(bool(found), nearest, len(options), limit),
        compared=len(options),
        rows=[_row(one, bool(found), day) for one in found or nearest],
        assumptions=ASSUMPTIONS,
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def narrowed(job: Job, asked: Mapping[str, str]) -> Job:
    """The job on offers of a `gpu`, `provider`, `region` or `kind` only; `InvalidJob` for a kind that there is none of."""
    rent = {name: value for name, value in asked.items() if name != "gpu"}
    found = validated(Rent, job.hardware.rent.model_dump(exclude_none=True) | rent, "hardware.rent")
    changes = {"rent": found, "gpu": asked.get("gpu", job.hardware.gpu)}
    return job.model_copy(update={"hardware": job.hardware.model_copy(update=changes)})


@dataclass(slots=True)
class _Search:
    """All options of a job. Times are those of an accelerator and a number of GPUs, whoever rents them out."""

    job: Job
    limits: Limits
    today: date
    allow_files: bool
    known: dict[tuple[str, int, int], Timed | None] = field(default_factory=dict)
    too_small: list[tuple[int, int]] = field(default_factory=list)
    """Numbers of GPUs, and their memory, that do not hold the job: nor do as many or fewer that are as large or smaller."""
    refused: WillItFitError | None = None
    """Why the job runs nowhere, if nothing is merely too small for it: what was wrong where it was tried last."""

    def options(self) -> Iterator[Option]:
        offers = [o for o in suiting_any(self.job.hardware, self.today) if our_name(o.accelerator) is not None]
        for offer in sorted(offers, key=lambda o: (-o.gpus, -accelerator(o.accelerator).memory_bytes)):
            yield from self._instances(offer)

    def _instances(self, offer: Offer) -> Iterator[Option]:
        """Ways to rent one offer: the fewest instances that hold the job, and twice as many until they are quick enough."""
        instances = 1
        while instances * offer.gpus <= self.limits.gpus and (instances == 1 or offer.gpus >= CLUSTER):
            asked = offer.accelerator, offer.gpus, instances
            if asked not in self.known:
                self.known[asked] = self._timed(*asked)
            timed = self.known[asked]
            priced = None if timed is None else rented_for(offer, instances, timed.hours)
            if timed is not None and priced is not None:
                yield Option(offer, instances, timed.job, timed.time, *priced)
                if self.limits.hours is None or priced[0].value <= self.limits.hours:
                    return
            instances *= 2

    def _timed(self, name: str, gpus: int, nodes: int) -> Timed | None:
        """None where the job does not run, its peak does not fit, or its time is not known."""
        job, size = spread(self.job, name, gpus, nodes), (gpus * nodes, accelerator(name).memory_bytes)
        if job is None or any(size[0] <= count and size[1] <= memory for count, memory in self.too_small):
            return None
        try:
            found = step_time(job, self.allow_files)
        except WillItFitError as error:
            self.refused = error
            return None
        if found is None:
            self.too_small.append(size)
            return None
        time, hours = found
        if time is None or hours is None:
            self.refused = NotModelled(f"how long a step takes on {name} is not known", "hardware.gpu")
            return None
        return Timed(job, time, hours)


def spread(job: Job, name: str, gpus: int, nodes: int) -> Job | None:
    """The job with its batch shared out over other GPUs; None where its degrees do not divide them."""
    split, training = job.parallelism, job.training
    group = split.tensor * split.pipeline * split.context
    ranks, rest = divmod(gpus * nodes, group)
    if rest or not ranks:
        return None
    before = split.data or max(1, job.hardware.gpus * job.hardware.nodes // group)
    each = max(1, training.micro_batch_size * training.gradient_accumulation_steps * before // ranks)
    micro = next(size for size in range(min(training.micro_batch_size, each), 0, -1) if each % size == 0)
    unsuited = ("ddp", "fsdp1", "fsdp2", "hsdp") if ranks == 1 else ("none",)
    strategy = None if split.strategy in unsuited else split.strategy
    network = job.hardware.network if name == job.hardware.gpu else None  # other GPUs come in other nodes
    return job.model_copy(
        update={
            "hardware": job.hardware.model_copy(
                update={"gpu": name, "memory": None, "in_use": None, "gpus": gpus, "nodes": nodes, "network": network}
            ),
            "parallelism": split.model_copy(update={"data": ranks, "strategy": strategy, "replicas": None}),
            "training": training.model_copy(update={"micro_batch_size": micro, "gradient_accumulation_steps": each // micro}),
        }
    )


def rented_for(offer: Offer, instances: int, hours: Hours) -> tuple[Hours, Decimal] | None:
    """A run's hours on some instances of an offer, and its cost; None if a spot instance would be taken back too soon."""
    if offer.kind == "spot":
        try:
            longer = spot.lengthening(offer, instances)
        except InvalidJob:
            return None
        hours = Hours(*(float(exact(h) * by) for h, by in zip(hours, (longer.value, longer.low, longer.high), strict=True)))
    return hours, run_cost(offer, hours.value, instances)


def _within(one: Option, limits: Limits) -> bool:
    return (limits.cost is None or one.total <= limits.cost) and (limits.hours is None or one.hours.value <= limits.hours)


def _confirmed(options: list[Option], rows: int, allow_files: bool) -> Iterator[Option]:
    """The first options that fit with the overhead on top of the peak."""
    verdicts: dict[tuple[str, int, int], bool | None] = {}
    for one in options:
        asked = one.offer.accelerator, one.offer.gpus, one.instances
        if asked not in verdicts:
            verdicts[asked] = fits(one.job, allow_files, ROOMY)
        if verdicts[asked]:
            yield one
            rows -= 1
        if not rows:
            return


def _nearest(options: list[Option], allow_files: bool) -> list[Option]:
    """The cheapest of all, and the quickest."""
    quickest = sorted(options, key=lambda one: one.hours.value)
    found = [one for every in (options, quickest) for one in _confirmed(every, 1, allow_files)]
    return found[:1] if len(found) == 2 and found[0] is found[1] else found


def _reason(possible: bool, nearest: list[Option], compared: int, limits: Limits) -> str:
    cost = f"for {limits.cost}" if limits.cost is not None else ""
    hours = f"within {limits.hours:g} h" if limits.hours is not None else ""
    asked = " and ".join(filter(None, (cost, hours)))
    if possible:
        return f"it can be done {asked}".rstrip()
    if not nearest and compared:
        return "wherever the peak fits, what lies beside it on the GPU, or a node's own memory (host.memory), is too much"
    if not nearest:
        return f"it fits on nothing that can be rented with up to {limits.gpus} GPUs"
    best, quick = nearest[0], nearest[-1]
    return (
        f"it cannot be done {asked}: the cheapest way costs {money(best.total)} {best.offer.currency} and takes "
        f"{best.hours.value:.1f} h, the quickest {quick.hours.value:.1f} h for {money(quick.total)} {quick.offer.currency}"
    )


def _row(one: Option, within: bool, today: date) -> BudgetRow:
    offer, job, gpus = one.offer, one.job, one.instances * one.offer.gpus
    low, high = (money(run_cost(offer, hours, one.instances)) for hours in (one.hours.low, one.hours.high))
    return BudgetRow(
        within=within,
        provider=offer.provider,
        instance=offer.instance,
        kind=offer.kind,
        region=offer.region,
        instances=one.instances,
        accelerator=offer.accelerator,
        gpus=gpus,
        strategy=job.parallelism.strategy or ("none" if job.parallelism.data == 1 else "fsdp2"),
        micro_batch_size=job.training.micro_batch_size,
        gradient_accumulation_steps=job.training.gradient_accumulation_steps,
        hours=one.hours.value,
        range_hours=(one.hours.low, one.hours.high),
        gpu_hours=one.hours.value * gpus,
        total=money(one.total),
        range_total=(low, high),
        currency=offer.currency,
        bottleneck=one.time.bottleneck,
        price_as_of=offer.as_of.isoformat(),
        price_source=offer.source,
        warning=age_warning(offer.as_of, today) if offer.old(today) else "",
        job=job.model_dump(mode="json", exclude_defaults=True),
    )
