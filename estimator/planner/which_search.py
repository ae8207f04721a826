"""The search for hardware: every card of the catalogue, from few of it to many, until it does what was asked.

A job's simulation depends on a card by its compute capability only, so cards that are alike share one, and differ in what they
offer. What weights alone forbid is not simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from estimator.contract.errors import Contradiction, InvalidJob
from estimator.contract.job import Hardware, Job
from estimator.contract.job.hardware import Rent
from estimator.contract.units import money
from estimator.hardware.accelerator import Accelerator
from estimator.hardware.capacity import capacity
from estimator.pipeline.estimation import step_time
from estimator.pipeline.verdict import offered
from estimator.planner.cases import Done, Own, Refused, TooMuch, Usual
from estimator.planner.fleet import sizes
from estimator.planner.renting import NOT_KNOWN, Rented, Within, cheapest, rentable
from estimator.planner.which_answer import TooLittle, WhichRow
from estimator.timing.run_length import Hours

Watch = Callable[[int], None]
"""Told how many have been tried."""


@dataclass(slots=True)
class Search:
    """What is tried, and what was found; `today`: by which a price is old; `most`: GPUs that are tried."""

    case: Usual | Own
    limits: Within
    today: date
    allow_files: bool
    most: int
    rows: list[WhichRow] = field(default_factory=list)
    failed: list[TooLittle] = field(default_factory=list)
    unknown: dict[tuple[Any, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    tried: int = 0
    complete: bool = True
    refused: InvalidJob | None = None
    """What was wrong with the job where it was tried last."""

    @property
    def processes(self) -> bool:
        """Whether it is said what the run processes, so that it has a length."""
        if isinstance(self.case, Usual):
            return "tokens" in self.case.training
        training = self.case.job.training
        return self.case.job.task == "train" and not (training.tokens is None and training.dataset is None)

    def refuse_limits(self) -> None:
        """Refuse limits of a run whose length is not known."""
        serves = self.case.slug.startswith("serve") if isinstance(self.case, Usual) else self.case.job.task == "serve"
        for name, given in (("within", self.limits.hours), ("under", self.limits.money and not self.limits.money.hourly)):
            if given and serves:
                raise Contradiction("serving has no end: write what an hour may cost, --under '$2/h'", name)
            if given and not self.processes:
                raise Contradiction("needs the length of the run: say how many tokens it processes, such as 100M", name)

    def run(self, every: list[Accelerator], watch: Watch) -> None:
        """Try every card, from few of it to many."""
        for card in every:
            fewer: TooLittle | None = None
            for hardware in sizes(card, self.most):
                found = self._try(hardware, card, fewer)
                self.tried += 1
                watch(self.tried)
                if isinstance(found, TooLittle):
                    fewer = found
                elif isinstance(found, WhichRow) and not self._more_may_be_better(found):
                    break  # more of it do it, too
                elif found is False:
                    break

    def _more_may_be_better(self, found: WhichRow) -> bool:
        """Whether more of a card that does it may cost less, or are asked for so that the run is done in time."""
        return self.processes and (found.price_per_hour is not None or self.limits.hours is not None)

    def _try(self, hardware: Hardware, card: Accelerator, fewer: TooLittle | None) -> WhichRow | TooLittle | bool:
        """A row, or what is not enough; False where more of the card need not be tried, True where they may do it."""
        room = capacity(hardware)
        try:
            found = self.case.on(hardware, room)
        except InvalidJob as error:
            self.refused = error
            return True
        if found is None:
            return True
        if isinstance(found, Refused):
            self.unknown[found.verdict, found.why].append(card.name)
            return False
        if isinstance(found, TooMuch):
            return self._not(hardware, card, None, found.reason)
        memory, verdict = found.judged.memory, found.judged.verdict
        if not verdict.fits:
            return self._not(hardware, card, memory.total_bytes, verdict.reason)
        hours = self._hours(found.judged.job) if self.processes else None
        priced = self._priced(hardware, card.name, hours)
        if (reason := self._beyond(priced, hours)) is not None:
            if not reason:
                what = "how long a step takes on it" if self.processes and hours is None else "its price"
                self.unknown["unknown", f"it fits, but {what} is not known"].append(card.name)
                return False
            return self._not(hardware, card, memory.total_bytes, reason)
        row = self._row(hardware, card, found, priced, hours, fewer)
        self.rows.append(row)
        return row

    def _not(self, hardware: Hardware, card: Accelerator, needed: int | None, reason: str) -> TooLittle:
        gpus = hardware.gpus * hardware.nodes
        found = TooLittle(
            accelerator=card.name,
            gpus=hardware.gpus,
            nodes=hardware.nodes,
            offered_bytes=card.memory_bytes * gpus,
            needed_bytes=needed,
            reason=reason,
        )
        self.failed.append(found)
        return found

    def _hours(self, job: Job) -> Hours | None:
        found = step_time(job, self.allow_files)
        return None if found is None else found[1]

    def _priced(self, hardware: Hardware, name: str, hours: Hours | None) -> Rented | None:
        """The cheapest way to rent it, of the offers that the job takes; None where no price is known."""
        rent = self.case.job.hardware.rent if isinstance(self.case, Own) else Rent()
        if self.limits.money is not None and rent.currency is None:
            rent = rent.model_copy(update={"currency": self.limits.money.currency})
        return cheapest(rentable(hardware.model_copy(update={"rent": rent}), name, self.today), hours)

    def _beyond(self, priced: Rented | None, hours: Hours | None) -> str | None:
        """Why it is not within the limits; empty where that is not known, None where it is within them."""
        broken = self.limits.broken(priced, hours)
        if broken is None or broken == NOT_KNOWN:
            return None if broken is None else ""
        if broken.hours is not None:
            return f"it fits, but the run takes {broken.hours:,.1f} h there, more than {self.limits.hours:g} h"
        amount = self.limits.money
        assert amount is not None
        assert broken.paid is not None
        what = "an hour costs" if amount.hourly else "the run costs"
        return f"it fits, but {what} {money(broken.paid)} {amount.currency} there, more than {money(amount.amount)}"

    def _row(
        self,
        hardware: Hardware,
        card: Accelerator,
        found: Done,
        priced: Rented | None,
        hours: Hours | None,
        fewer: TooLittle | None,
    ) -> WhichRow:
        memory, job = found.judged.memory, found.judged.job
        limit = offered(memory.capacity_bytes, job) or 0
        offer = None if priced is None else priced.offer
        took = priced.hours if priced is not None and priced.hours is not None else hours
        return WhichRow(
            accelerator=card.name,
            gpus=hardware.gpus,
            nodes=hardware.nodes,
            offered_bytes=card.memory_bytes * hardware.gpus * hardware.nodes,
            capacity_bytes=card.memory_bytes,
            spread=found.spread,
            verdict="fits" if found.judged.verdict.verdict == "fits" else "tight",
            total_bytes=memory.total_bytes,
            headroom_bytes=limit - memory.total_bytes,
            provider=offer and offer.provider,
            instance=offer and offer.instance,
            kind=offer and offer.kind,
            region=offer and offer.region,
            instances=None if priced is None else priced.instances,
            price_per_hour=None if priced is None else money(priced.hourly),
            currency=offer and offer.currency,
            price_as_of=offer and offer.as_of.isoformat(),
            hours=None if took is None else took.value,
            total=None if priced is None or priced.total is None else money(priced.total),
            fewer=fewer,
            job=job.model_dump(mode="json", exclude_defaults=True),
        )
