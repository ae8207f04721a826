"""How many copies of a served model bear a load: the answer, its rows, and what does not bear it."""

from __future__ import annotations

from typing import Any

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer


class Load(AnswerPart):
    """What was asked: requests that come in a second, their tokens, and how soon answers begin and go on."""

    requests_per_second: float
    prompt_tokens: int
    output_tokens: int
    time_to_first_token_seconds: float | None
    """At most, in the mean; null: however long it takes."""
    time_per_output_token_seconds: float | None


class ReplicasRow(AnswerPart):
    """A card, how many of it make one copy of the model, and how many copies bear the load."""

    accelerator: str
    gpus: int
    """GPUs of one copy, over which its layers are divided."""
    replicas: int
    range_replicas: tuple[int, int]
    """With kernels as fast, and as slow, as the times' ranges say."""
    total_gpus: int
    most_requests_per_second: float
    """Of one copy, with as many sequences at a time as its memory and the limits allow."""
    most_sequences: int
    sequences: int
    """At a time in each copy at this load."""
    time_to_first_token_seconds: float
    """In the mean, at this load: the wait for prompts before it, a step that is running, and its own prompt."""
    time_per_output_token_seconds: float
    range_time_per_output_token_seconds: tuple[float, float]
    certain: bool
    """Whether the limits hold at the slow end of the ranges, too."""
    provider: str | None
    """Of the cheapest offer; null where no price is known."""
    instance: str | None
    instances: int | None
    price_per_hour: str | None
    """Of all instances together, in `currency`."""
    currency: str | None
    price_as_of: str | None
    job: dict[str, Any]
    """One copy at this load, which `estimate` answers in full."""


class NotBorne(AnswerPart):
    """Hardware on which no number of copies bears the load, and why."""

    accelerator: str
    gpus: int
    reason: str


class Replicas(WholeAnswer):
    """On which hardware how many copies of a model bear a load: the cheapest first, those without a price last."""

    model: str
    load: Load
    possible: bool | None
    """null where none is known to bear it, and of some the speed is not known."""
    reason: str
    cheapest: ReplicasRow | None
    """By the hour; null where no price is known."""
    fewest: ReplicasRow | None
    """The one with fewest GPUs."""
    found: int
    rows: list[ReplicasRow]
    failed: list[NotBorne]
    unknown: list[str]
    """Cards on which the model fits, but no speed is known."""
    assumptions: list[str]
    versions: Versions
