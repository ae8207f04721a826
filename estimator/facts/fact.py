"""Facts about the world: a value, its unit, where it was read and when."""

from __future__ import annotations

from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from estimator.contract.reading import load_yaml


class Fact(BaseModel):
    """One fact. `verified` is false where no second, independent source agrees; `note` says what else matters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: int | float
    unit: str
    source: str
    second_source: str = ""
    as_of: date
    verified: bool = True
    note: str = ""


class Rows(BaseModel):
    """Rows of a table that a number was fitted to, and how.

    `table`: its name in tests/held_out.py. `rows`: their names, or patterns with `*`, which stand for the rows that match and are
    not held out. By eye: the rows were looked at, held out or not, and no equation says how the number follows from them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str
    rows: tuple[str, ...]
    how: Literal["median", "middle", "reading", "least squares", "least errors", "tenths", "twentieths", "by eye"]


FittedTo = Literal["nothing"] | tuple[Rows, ...]
"""What a number was fitted to. Nothing: a source says it so, or it is an assumption, as `source` has it."""


class MeasuredFact(Fact):
    """A measured constant, with the range in which measurements lie, and the measurements that it was fitted to."""

    range: tuple[float, float] | None = None
    fitted_to: FittedTo

    @property
    def low(self) -> float:
        return self.range[0] if self.range else self.value

    @property
    def high(self) -> float:
        return self.range[1] if self.range else self.value

    def taken(self, whole: float) -> tuple[float, float, float]:
        """How long something takes at this rate, or share of one, that takes `whole` at a rate of one: at least, expected and
        at most."""
        return whole / self.high, whole / self.value, whole / self.low


@cache
def measured(path: Path) -> dict[str, MeasuredFact]:
    """The constants of a file that holds nothing else, by name."""
    return {name: MeasuredFact.model_validate(fact) for name, fact in load_yaml(path).items()}
