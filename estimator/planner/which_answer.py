"""Which hardware does it: the answer, its rows, and what was not enough."""

from __future__ import annotations

from typing import Any, Literal

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer


class TooLittle(AnswerPart):
    """Hardware that does not do it, and why."""

    accelerator: str
    gpus: int
    """GPUs of each node."""
    nodes: int
    offered_bytes: int
    """What all GPUs together offer to processes."""
    needed_bytes: int | None
    """What one GPU would need; null where weights alone, which were not simulated, are too much."""
    reason: str


class WhichRow(AnswerPart):
    """A card, and how many of it do what was asked."""

    accelerator: str
    gpus: int
    """GPUs of each node."""
    nodes: int
    offered_bytes: int
    """What all GPUs together offer to processes."""
    capacity_bytes: int
    """What one GPU offers."""
    spread: str
    """How the model is spread over the GPUs: the strategy and its degrees, in words."""
    verdict: Literal["fits", "tight"]
    total_bytes: int
    """What one GPU needs."""
    headroom_bytes: int
    """Bytes of the GPU, or of the engine's share of it, that are left."""
    tokens_per_second: float | None = None
    """On all GPUs: of answers while they are written, all sequences together, or that are trained on; null where it is not known,
    and of rows beyond those that are listed."""
    provider: str | None
    """Of the cheapest offer that holds these GPUs; null where no price is known."""
    instance: str | None
    kind: str | None
    region: str | None
    instances: int | None
    price_per_hour: str | None
    """Of all instances together, in `currency`."""
    currency: str | None
    price_as_of: str | None
    hours: float | None
    """Duration of the run; null where it is not known, or not said how much the run processes."""
    total: str | None
    """What the run costs, in `currency`."""
    fewer: TooLittle | None
    """Why the next fewer of the card do not do it; null where one does, or fewer do, too."""
    job: dict[str, Any]
    """The complete job on this hardware, which `estimate` answers in full."""


class NotKnown(AnswerPart):
    """Cards of which it is not known, or on which what was asked has no kernels."""

    accelerators: list[str]
    verdict: Literal["unknown", "does not run"]
    why: str


class Which(WholeAnswer):
    """Which hardware does what was asked: cards and numbers of them, the smallest first."""

    model: str
    way: str
    """What was asked of it: a usual way of using a model, or that it was a job."""
    possible: bool | None
    """null where none is known to do it, and of some it is not known."""
    reason: str
    smallest: WhichRow | None
    """The one whose GPUs together offer least."""
    too_small: TooLittle | None
    """The largest hardware that offers less than `smallest` and does not do it; without one, the one that is nearest to it."""
    cheapest: WhichRow | None
    """By the run's cost where that is known, else by the hour; null where no price is known."""
    found: int
    """How many rows there are in all."""
    rows: list[WhichRow]
    tried: int
    """On how many cards and numbers of them it was tried."""
    complete: bool
    """False where the search was interrupted."""
    unknown: list[NotKnown]
    assumptions: list[str]
    versions: Versions
