"""Plans: the frontier of money, time and memory that is left, and why what is near is worse."""

from __future__ import annotations

from typing import Any, Literal

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer
from estimator.planner.which_answer import NotKnown


class PlanNeighbour(AnswerPart):
    """A plan with one field changed, and why it is worse, or what it is better in."""

    changes: dict[str, Any]
    """The field, and those that go with it, by their dotted names, with other values than in the plan; hardware.gpus and
    hardware.nodes where there are fewer or more of the same GPUs."""
    fits: bool | None
    """null where it was refused: it does not go together, or is not known here."""
    short_bytes: int | None
    """Bytes by which it does not fit one GPU; null where it fits, and where it was refused."""
    slower: float | None
    """The share by which it takes longer; negative where it is quicker, null where it does not fit or no time is known."""
    dearer: str | None
    """What it costs more, in the plan's currency; negative where it is cheaper, null as `slower`, or where no price is known."""
    slack_bytes: int | None
    """Bytes by which more of each GPU is left; negative where less is."""
    reason: str


class PlanRow(AnswerPart):
    """One way to run a job: none that was looked at is better in one of money, time and memory left, and no worse in another."""

    changes: dict[str, Any]
    """Fields of the job that have other values than it says, by their dotted names."""
    accelerator: str | None
    """null of a card without a name."""
    gpus: int
    """GPUs of each node."""
    nodes: int
    verdict: Literal["fits", "tight"]
    total_bytes: int
    """What one GPU needs."""
    headroom_bytes: int
    """Bytes of it that are left."""
    offered_bytes: int
    """What one GPU offers."""
    step_seconds: float | None
    tokens_per_second: float | None
    """Of all GPUs; null where no time is known."""
    hours: float | None
    """Duration of the run; null where the job does not say how much it processes."""
    provider: str | None
    """Of the cheapest offer that holds these GPUs; null where no price is known."""
    instance: str | None
    kind: str | None
    region: str | None
    instances: int | None
    price_per_hour: str | None
    """Of all instances together, in `currency`."""
    price_as_of: str | None
    total: str | None
    """What the run costs; null where the job does not say how much it processes, and where no price is known."""
    million_tokens: str | None
    """What a million tokens cost."""
    neighbours: list[PlanNeighbour]
    job: dict[str, Any]
    """The complete job, which `estimate` answers in full."""


class Looked(AnswerPart):
    """What became of the candidates: all combinations of values of the fields that may change."""

    candidates: int
    settled: int
    """Of which it is known what became of them: all, unless the search was ended before."""
    without_simulation: int
    """Left out by a bound: what each GPU keeps in any case is more than it offers, or no step is so quick that it mattered."""
    simulated: int
    refused: int
    """Which do not go together, or are not known here."""
    too_large: int
    """Of those simulated: which do not fit."""
    beyond: int
    """Of those simulated: which take longer, or cost more, than was asked."""


class Plan(WholeAnswer):
    """The ways to run a training job that are best in money, time and memory left, the cheapest first."""

    model: str
    possible: bool | None
    """null where none is known to do, and something is not known, or not looked at."""
    reason: str
    cheapest: int | None
    """The place in `rows` of the cheapest, from 0 on; null where no price is known."""
    quickest: int | None
    roomiest: int | None
    """Of the one of whose GPUs the largest share is left."""
    currency: str | None
    rows: list[PlanRow]
    found: int
    """How many there are in all."""
    looked: Looked
    complete: bool
    """False where it was interrupted, or there was more than it may look at."""
    unknown: list[NotKnown]
    assumptions: list[str]
    versions: Versions
