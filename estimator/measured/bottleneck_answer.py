"""What a step is bound by, as Python, the command line and REST give it."""

from __future__ import annotations

from typing import Any

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer


class Bound(AnswerPart):
    """A share of the time of a step: as it was measured, and as it is predicted."""

    name: str
    """compute | memory | exchange | copies | host | data."""
    text: str
    measured: float | None
    """Null where the profile does not tell it apart."""
    predicted: float | None
    """Null where no time is known of the job."""


class Remedy(AnswerPart):
    """A change that makes tokens come faster, and by how much."""

    bound: str
    text: str
    change: dict[str, Any]
    """Of the job; empty where it has no field for it."""
    gain: float
    """Of the time that a token takes: 0.25 is a quarter less."""
    at_most: bool
    """Whether it is all that the bound takes, of which the change brings a part."""


class Profiled(WholeAnswer):
    """What a step is bound by, beside what it should be bound by, and what helps, the most first."""

    kind: str
    """Of the profile."""
    bound: str | None
    """What most of the time is spent on; null where the profile does not say."""
    text: str
    bounds: list[Bound]
    figures: dict[str, float]
    """What the profile says besides."""
    measured_seconds: float | None
    predicted_seconds: float | None
    remedies: list[Remedy]
    job: dict[str, Any]
    versions: Versions
