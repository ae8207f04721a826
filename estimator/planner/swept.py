"""A sweep as people ask for it, in words, and as a table: a column for each field, and one for each number; CSV, JSON, Arrow."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from importlib import import_module
from io import StringIO
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

from estimator.contract.answer import Versions, WholeAnswer
from estimator.contract.errors import InvalidValue, Unreadable
from estimator.contract.job import Hardware, Job
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.exchange.documents import job_of
from estimator.planner.ranges import values
from estimator.planner.what_if_answer import shown
from estimator.specs.resolve import resolve
from estimator.sweeps.arrays import BY_PROGRAM, NO, ONE_BY_ONE, REFUSED, UNKNOWN, YES, Sweep
from estimator.sweeps.sweep import FEW, FEW_SERVED, sweep

MOST_POINTS = 4_000_000
BYTES = ("peak_bytes", "resident_bytes", "least_bytes", "total_bytes")
COLUMNS = (*BYTES, "fits", "how")
"""Of a table, after those of the fields."""
FITS: dict[int, bool | None] = {YES: True, NO: False, UNKNOWN: None}
HOW: dict[int, str] = {BY_PROGRAM: "program", ONE_BY_ONE: "one by one", REFUSED: "refused"}
NOT_SAID = "time and cost are not swept: `willitfit what-if` says them of each combination"
NOT_ASKED = (
    f"more than {FEW} combinations of a training are not decided by the peak, or more than {FEW_SERVED:,} of a server: whether "
    "these fit is not known; with --reserves (in Python reserves=True) each is estimated, as is each of fewer"
)


class Swept(WholeAnswer):
    """What a job takes of a GPU with every combination of values of some of its fields: columns of one length, the last field
    changing fastest."""

    model: str
    fields: dict[str, list[Any]]
    """The values of each field, as they were asked for."""
    points: int
    peak_bytes: list[int | None]
    """The most that tensors take at any moment; null where the job is refused."""
    resident_bytes: list[int | None]
    """What tensors take between steps."""
    least_bytes: list[int | None]
    """The peak, and what the process takes in addition: what an answer's total is without the caching allocator's blocks."""
    total_bytes: list[int | None]
    """With those, as `estimate` says it; null where the allocator was not asked."""
    fits: list[bool | None]
    """null where it is not known."""
    how: list[Literal["program", "one by one", "refused"]]
    refusals: dict[str, int]
    """Why combinations are refused, with how many are."""
    programs: int
    assumptions: list[str]
    versions: Versions

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The values of the fields, then those of `COLUMNS`."""
        columns = zip(*(getattr(self, name) for name in COLUMNS), strict=True)
        for point, found in zip(product(*self.fields.values()), columns, strict=True):
            yield (*point, *found)

    def to_csv(self) -> str:
        """The rows as CSV (RFC 4180, lines that end in a line feed); null is empty."""
        out = StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*self.fields, *COLUMNS])
        writer.writerows([shown(cell) for cell in row] for row in self.rows())
        return out.getvalue()

    def write_arrow(self, path: str | Path) -> None:
        """Write the rows as an Arrow file (Feather). Raises `Unreadable` without pyarrow, or where it cannot be written."""
        try:
            pyarrow, feather = import_module("pyarrow"), import_module("pyarrow.feather")
        except ImportError:
            raise Unreadable("is written by pyarrow, which is not here: pip install pyarrow, or ask for CSV", str(path)) from None
        points = list(zip(*product(*self.fields.values()), strict=True))
        columns = {name: [_plain(value) for value in column] for name, column in zip(self.fields, points, strict=True)}
        table = pyarrow.table(columns | {name: getattr(self, name) for name in COLUMNS})
        try:
            feather.write_feather(table, str(path))
        except OSError as error:
            raise Unreadable(f"cannot be written: {error.strerror or error}", str(path)) from None


def swept(
    job: Job | Mapping[str, Any] | str | Path,
    changes: Mapping[str, str | Iterable[Any]],
    *,
    on: str | Hardware | None = None,
    reserves: bool = False,
    most: int = MOST_POINTS,
    allow_files: bool = True,
    executor: Executor | None = None,
) -> Swept:
    """A sweep of a job over values of its fields, written as for `what_if`: "1k..128k" doubles, "8..64:8" goes in steps.

    `on`: hardware in place of the job's own. `reserves`: the caching allocator is asked where it decides, however many points
    that are; few are always estimated. `executor`: its workers share what takes long. Raises `InvalidJob` for fields and values
    that are none, and for more than `most` combinations, and `UnknownName`.
    """
    given = job_of(job, on)
    if not changes:
        raise InvalidValue("say what to change, such as training.sequence_length=1k..128k", "changes")
    asked = [values(given, field, text) for field, text in changes.items()]
    count = prod(len(one.taken) for one in asked)
    if count > most:
        raise InvalidValue(f"these are {count:,} combinations, more than {most:,}: ask about fewer values", "changes")
    model = "" if "model" in changes else resolve(given.model, allow_files).name
    found = sweep(given, {one.field: one.taken for one in asked}, allow_files, reserves, executor=executor, few=True)
    return _table(found, model, {one.field: list(one.shown) for one in asked}, reserves)


def _table(found: Sweep, model: str, fields: dict[str, list[Any]], reserves: bool) -> Swept:
    fits = [FITS[one] for one in found.fits.ravel().tolist()]
    undecided = not reserves and any(
        fit is None and how != REFUSED for fit, how in zip(fits, found.how.ravel().tolist(), strict=True)
    )
    return Swept(
        model=model,
        fields=fields,
        points=len(fits),
        **{name: getattr(found, name).ravel().tolist() for name in BYTES},
        fits=fits,
        how=[HOW[one] for one in found.how.ravel().tolist()],
        refusals=found.refusals,
        programs=found.programs,
        assumptions=[NOT_SAID, *([NOT_ASKED] if undecided else [])],
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


def _plain(value: Any) -> Any:
    """A value that a column of Arrow holds: what is more than a word or a number as JSON."""
    return shown(value) if isinstance(value, dict | list) else value
