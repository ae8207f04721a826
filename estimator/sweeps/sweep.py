"""One job over a whole grid of its fields: arrays of what `estimate` says of each point.

Where whole numbers of training or serving vary, a program answers (`structure.py`): the job is run once with symbols, which says
under which conditions the same operations run, and what is alive at each moment as expressions. Where a condition does not hold
it is run again, around a point that is left. Each program is compared with runs on numbers at the ends of what it is used for.
Points for which no program can be made are run one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import Job
from estimator.pipeline.estimation import judged
from estimator.pipeline.run import prepared
from estimator.pipeline.verdict import offered
from estimator.serving.engines import engine_of
from estimator.specs.resolve import resolve
from estimator.specs.teacher import with_draft, with_teacher
from estimator.sweeps.executors import results
from estimator.sweeps.grid import Grid, grid, tiles
from estimator.sweeps.remembered import Remembered
from estimator.sweeps.structure import Program, Refused, Unsuited, agrees, by_itself, changed, program

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

YES, NO, UNKNOWN = 1, 0, -1
"""Values of `fits`."""
BY_PROGRAM, ONE_BY_ONE, REFUSED = 0, 1, 2
"""Values of `how`."""
BYTES = ("peak_bytes", "resident_bytes", "least_bytes", "total_bytes")
NOT_SAID = -1
"""Bytes that are masked in the end."""
PIECE = 8
"""Points of which the allocator is asked by one worker at a time."""
FEW, TRIES = 4, 8
"""A program should hold at so many points, on average over so many programs; else points are run one by one."""

remembered = Remembered()


@dataclass(slots=True)
class Sweep:
    """Arrays with an axis for each of `fields`, in their order. Bytes are masked where a job is refused.

    `least_bytes`: the peak and what the process takes beside the tensors, without what the caching allocator keeps.
    `total_bytes`: with that, as `estimate` says it; masked where the allocator was not asked. `fits`: `YES`, `NO`, or `UNKNOWN`,
    where the allocator would decide and was not asked, or nothing is known of the hardware. `how`: `BY_PROGRAM`, `ONE_BY_ONE` or
    `REFUSED`. `refusals`: why, with the number of points. `programs`: how many were used.
    """

    fields: dict[str, tuple[Any, ...]]
    peak_bytes: Any
    resident_bytes: Any
    least_bytes: Any
    total_bytes: Any
    fits: Array
    how: Array
    refusals: dict[str, int] = field(default_factory=dict)
    programs: int = 0


def sweep(
    job: Job | Mapping[str, Any] | str | Path,
    fields: Mapping[str, Sequence[Any]],
    allow_files: bool = True,
    reserves: bool = False,
    roomy: float = 0.0,
    executor: Executor | None = None,
) -> Sweep:
    """What a job takes for all combinations of these values of its fields, to the byte as `estimate` says it.

    `fields`: values by path, as `training.sequence_length`. `reserves`: the caching allocator is asked where it decides whether a
    job fits, which takes as long as an estimate for each such point. `roomy`: a job that leaves this share of the card is said to
    fit without asking, if its host is not asked about (fragmentation seldom takes more than 5 %). `executor`: its workers share
    the values of fields that no program varies, and the questions to the allocator. A combination that is refused is masked.
    Raises `InvalidJob` for a job or a field that cannot be read, and `UnknownName`.
    """
    asked = grid(job, fields)
    found = _empty(asked)
    inner = _suited(asked, allow_files)
    parts = list(asked.outer(inner))
    if executor is None or len(parts) < 2:
        for outer, part in parts:
            _Block(asked, inner, outer, found, part, allow_files, roomy).fill()
    else:
        done = results(executor, _filled, [(asked.at(outer), inner, outer, allow_files, roomy) for outer, _ in parts])
        for (_, part), one in zip(parts, done, strict=True):
            _put(found, part, one)
    if reserves:
        _ask_reserves(asked, found, allow_files, executor)
    return _masked(found)


def _filled(asked: Grid, inner: list[str], outer: dict[str, Any], allow_files: bool, roomy: float) -> Sweep:
    """A grid in which only fields vary that a program may vary."""
    found = _empty(asked)
    _, part = next(asked.outer(inner))
    _Block(asked, inner, outer, found, part, allow_files, roomy).fill()
    return found


def _put(found: Sweep, part: Any, one: Sweep) -> None:
    """A part of a grid, which was filled by itself, in its place."""
    for name in (*BYTES, "fits", "how"):
        whole, answered = getattr(found, name), getattr(one, name)
        whole[part] = answered.reshape(whole[part].shape)
    found.programs += one.programs
    for why, points in one.refusals.items():
        found.refusals[why] = found.refusals.get(why, 0) + points


def _empty(asked: Grid) -> Sweep:
    import numpy as np

    unknown = np.full(asked.shape, UNKNOWN, np.int8)
    peak, resident, least, total = [np.full(asked.shape, NOT_SAID, np.int64) for _ in range(4)]
    return Sweep(asked.axes, peak, resident, least, total, unknown, np.full(asked.shape, ONE_BY_ONE, np.int8))


def _masked(found: Sweep) -> Sweep:
    """With bytes masked that are not said."""
    import numpy as np

    for name in BYTES:
        setattr(found, name, np.ma.masked_equal(getattr(found, name), NOT_SAID))
    return found


def _suited(asked: Grid, allow_files: bool) -> list[str]:
    """Fields with which a symbolic run can be made in the middle of a grid: all that may be, or those that can be alone."""
    names, first = asked.symbolic(), {path: values[len(values) // 2] for path, values in asked.axes.items()}
    try:
        base = asked.job(first)
    except InvalidJob:
        return names

    def possible(some: list[str]) -> bool:
        question = _question(base, some, allow_files)
        if question is not None and remembered.of(question):
            return True
        try:
            made = program(base, {name: first[name] for name in some}, allow_files)
        except Unsuited:
            return False
        if question is not None:
            remembered.add(question, made)
        return True

    known = _question(base, asked.symbolic(least=1), allow_files)
    if known is not None and remembered.of(known):
        return asked.symbolic(least=1)
    if not names or possible(names):
        return names
    alone = [name for name in names if len(names) > 1 and possible([name])]
    return alone if len(alone) == 1 or (alone and possible(alone)) else alone[:1]


def _question(job: Job, names: Sequence[str], allow_files: bool) -> object:
    """All that programs over these fields depend on; None where a file would have to be compared, too."""
    model = resolve(job.model, allow_files)
    if model.checkpoint is not None:
        return None
    base = changed(with_draft(with_teacher(job, allow_files), allow_files), dict.fromkeys(names, 1)).model_dump_json(
        exclude_unset=True
    )
    return base, model.spec.model_dump_json(), frozenset(names)


class _Block:
    """The part of a grid in which only fields vary that a program may vary."""

    def __init__(
        self,
        asked: Grid,
        inner: list[str],
        outer: dict[str, Any],
        found: Sweep,
        part: Any,
        allow_files: bool,
        roomy: float,
    ):
        import numpy as np

        self.asked, self.inner, self.outer, self.found, self.part = asked, inner, outer, found, part
        self.allow_files = allow_files
        self.shape = tuple(len(asked.axes[name]) for name in inner)
        self.open = dict(zip(inner, np.ix_(*[np.asarray(asked.axes[name], np.int64) for name in inner]), strict=True))
        self.left = np.ones(self.shape, bool)
        self.limit: int | None = None
        self.roomy = roomy
        self.allocates = True
        self.known = False

    def fill(self) -> None:
        """Answer every point."""
        used: list[int] = []
        job = self._readable() if self.inner else None
        if job is not None:
            question = _question(job, self.inner, self.allow_files)
            for known in remembered.of(question):
                self._use(known, job)
                if known.wrong:
                    remembered.drop(question, known)
            while self.left.any() and (len(used) < TRIES or sum(used[-TRIES:]) >= FEW * TRIES):
                try:
                    made = program(job, self._point(self.left), self.allow_files)
                except Unsuited:
                    break
                used.append(self._use(made, job))
                if made.wrong or not used[-1]:
                    break
                if question is not None:
                    remembered.add(question, made)
        self._one_by_one()

    def _know(self, job: Job) -> None:
        """What the hardware offers to a job, and whether torch's allocator serves it."""
        ready = prepared(job, self.allow_files)
        self.limit = offered(ready.card.memory_bytes, ready.job)
        self.allocates = ready.job.task == "train" or engine_of(ready.job).allocates
        self.roomy = self.roomy if ready.job.host.memory is None else 0.0
        self.known = True

    def _readable(self) -> Job | None:
        """The job at a point of the block, if it can be read there; values that cannot are refused, of each field by itself."""
        middle = {name: self.asked.axes[name][len(self.asked.axes[name]) // 2] for name in self.inner}
        try:
            job = self.asked.job({**self.outer, **middle})
        except InvalidJob:
            return None
        for axis, name in enumerate(self.inner):
            values = self.asked.axes[name]
            ends = min(values), max(values)
            if not any(self._unread(name, end, middle) for end in ends):
                continue
            for number, value in enumerate(values):
                if error := self._unread(name, value, middle):
                    at = tuple(number if n == axis else slice(None) for n in range(len(self.shape)))
                    self._refuse(error, int(self.left[at].sum()))
                    self.found.how[self.part][at] = REFUSED
                    self.left[at] = False
        return job

    def _unread(self, name: str, value: int, middle: dict[str, int]) -> InvalidJob | None:
        try:
            self.asked.job({**self.outer, **middle, name: value})
        except InvalidJob as error:
            return error
        return None

    def _point(self, among: Array) -> dict[str, int]:
        """One of these points: that in the middle of the list."""
        import numpy as np

        flat = np.flatnonzero(among)
        return self._at(int(flat[len(flat) // 2]))

    def _at(self, number: int) -> dict[str, int]:
        import numpy as np

        at = np.unravel_index(number, self.shape)
        return {name: self.asked.axes[name][int(i)] for name, i in zip(self.inner, at, strict=True)}

    def _use(self, made: Program, job: Job) -> int:
        """Answer the points that are left where a program holds; how many these are, or 0 if it says something wrong."""
        import numpy as np

        covered = made.holds(self.open) & self.left
        points = np.flatnonzero(covered)
        if not len(points):
            return 0
        if not self._agrees(made, job, covered, points):
            made.wrong = True
            return 0
        if made.refusal is None and not self.known:
            self._know(changed(job, self._at(int(points[0]))))
        for tile in tiles(self.shape):
            self._fill(made, tile, covered[tile])
        self.left &= ~covered
        self.found.programs += 1
        if made.refusal is not None:
            self._refuse(made.refusal, len(points))
        return len(points)

    def _agrees(self, made: Program, job: Job, covered: Array, points: Array) -> bool:
        """Whether runs on numbers say the same at the ends of these points, as far as they were not compared before."""
        import numpy as np

        low, high = {}, {}
        for axis, name in enumerate(self.inner):
            others = tuple(n for n in range(len(self.shape)) if n != axis)
            there = [self.asked.axes[name][i] for i in np.flatnonzero(covered.any(axis=others))]
            low[name], high[name] = min(there), max(there)
        within = made.low and all(made.low[n] <= low[n] and high[n] <= made.high[n] for n in self.inner)
        if within:
            return True
        ends = {int(points[0]), int(points[-1])}
        if not all(agrees(made, job, self._at(number), self.allow_files) for number in ends):
            return False
        made.low = {n: min(low[n], made.low.get(n, low[n])) for n in self.inner}
        made.high = {n: max(high[n], made.high.get(n, high[n])) for n in self.inner}
        return True

    def _fill(self, made: Program, tile: tuple[slice, ...], covered: Array) -> None:
        import numpy as np

        if not covered.any():
            return
        how = self.found.how[self.part]
        how[tile] = np.where(covered, BY_PROGRAM if made.refusal is None else REFUSED, how[tile])
        if made.refusal is not None:
            return
        fields = {}
        for axis, name in enumerate(self.inner):
            values = self.open[name][tuple(s if n == axis else slice(None) for n, s in enumerate(tile))]
            fields[name] = values if covered.all() else np.broadcast_to(values, covered.shape)[covered]
        peak, resident, least = made.play(fields)
        results = self.found.peak_bytes, self.found.resident_bytes, self.found.least_bytes
        for array, values in zip(results, (peak, resident, least), strict=True):
            array[self.part][tile][covered] = values.astype(np.int64)
        if not self.allocates:
            self.found.total_bytes[self.part][tile][covered] = least.astype(np.int64)
        if self.limit is not None:
            self.found.fits[self.part][tile][covered] = self._fits(least)

    def _fits(self, least: Array) -> Array:
        """What the peak and the overheads decide by themselves."""
        import numpy as np

        assert self.limit is not None
        roomy = (least < (1 - self.roomy) * self.limit) & bool(self.roomy)
        return np.where(least > self.limit, NO, np.where(roomy, YES, UNKNOWN))

    def _one_by_one(self) -> None:
        import numpy as np

        for number in np.flatnonzero(self.left):
            at = np.unravel_index(int(number), self.shape)
            where = list(self.part)
            for name, i in zip(self.inner, at, strict=True):
                where[list(self.asked.axes).index(name)] = int(i)
            place = tuple(where)
            try:
                job = self.asked.job({**self.outer, **self._at(int(number))})
                if not self.known:
                    self._know(job)
                _, (peak, resident, least) = by_itself(job, self.allow_files)
            except (InvalidJob, NotModelled) as error:
                self._refuse(error, 1)
                self.found.how[place] = REFUSED
                continue
            except Refused as refused:
                self._refuse(refused.error, 1)
                self.found.how[place] = REFUSED
                continue
            self.found.peak_bytes[place], self.found.resident_bytes[place], self.found.least_bytes[place] = peak, resident, least
            if not self.allocates:
                self.found.total_bytes[place] = least
            if self.limit is not None:
                self.found.fits[place] = self._fits(np.asarray(least))

    def _refuse(self, error: InvalidJob | NotModelled, points: int) -> None:
        self.found.refusals[str(error)] = self.found.refusals.get(str(error), 0) + points


def _ask_reserves(asked: Grid, found: Sweep, allow_files: bool, executor: Executor | None) -> None:
    """Play the allocator where it decides whether a job fits."""
    import numpy as np

    undecided = np.flatnonzero((found.fits == UNKNOWN) & (found.how != REFUSED))
    pieces = [undecided[at : at + PIECE].tolist() for at in range(0, len(undecided), PIECE)]
    done: Iterator[list[tuple[int, int]]]
    if executor is None:
        done = (_reserved(asked, piece, allow_files) for piece in pieces)
    else:
        done = results(executor, _reserved, [(asked, piece, allow_files) for piece in pieces])
    for piece, said in zip(pieces, done, strict=True):
        for number, (total, fits) in zip(piece, said, strict=True):
            found.total_bytes.flat[number], found.fits.flat[number] = total, fits


def _reserved(asked: Grid, numbers: list[int], allow_files: bool) -> list[tuple[int, int]]:
    """What `estimate` says of some points: bytes in all, and whether they fit."""
    import numpy as np

    found = []
    for number in numbers:
        at = np.unravel_index(number, asked.shape)
        job = asked.job({path: values[int(i)] for (path, values), i in zip(asked.axes.items(), at, strict=True)})
        said = judged(job.model_dump(exclude_unset=True), allow_files)
        fits = said.verdict.fits
        found.append((said.memory.total_bytes, UNKNOWN if fits is None else YES if fits else NO))
    return found
