"""What one's own records bear out, as Python, the command line and REST give it."""

from __future__ import annotations

from typing import Any

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer


class Errors(AnswerPart):
    """Sizes of errors, as shares of what was measured."""

    median: float
    nine_tenths: float
    worst: float


class Constant(AnswerPart):
    """A constant that was fitted, and whether records that it was not fitted to are nearer with it."""

    name: str
    """kernels | exchanges | context."""
    of: str
    """What the errors are of."""
    value: float | str | None
    """What all records give; null where none says anything of it."""
    kept: bool
    why: str
    records: int
    models: int
    before: Errors | None = None
    """On each model's records, without it."""
    after: Errors | None = None
    """On each model's records, with what was fitted to the other models' alone."""


class Skipped(AnswerPart):
    """A record that was not used."""

    name: str
    why: str


class Calibrated(WholeAnswer):
    """A calibration: the part of a job that carries it, and what it was tried on."""

    card: str
    calibration: dict[str, Any] | None
    """`calibration` of a job: null where no constant is borne out."""
    constants: list[Constant]
    records: int
    skipped: list[Skipped]
    software: dict[str, list[str]]
    """Versions of the packages that the records name."""
    as_of: str
    versions: Versions
