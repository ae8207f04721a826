"""The part of a grid in which only fields vary that a program may vary. What no program answers is run by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from estimator.contract.errors import InvalidJob, NotModelled
from estimator.contract.job import Job
from estimator.pipeline.run import prepared
from estimator.pipeline.verdict import offered
from estimator.serving.engines import engine_of
from estimator.specs.resolve import resolve
from estimator.specs.teacher import with_draft, with_teacher
from estimator.sweeps.arrays import BY_PROGRAM, NO, REFUSED, UNKNOWN, YES, Sweep
from estimator.sweeps.grid import Grid, tiles
from estimator.sweeps.remembered import Remembered
from estimator.sweeps.structure import Program, Refused, Unsuited, agrees, by_itself, changed, program

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FEW, TRIES = 4, 8
"""A program should hold at so many points, on average over so many programs; else points are run one by one."""

remembered = Remembered()


def question_of(job: Job, names: Sequence[str], allow_files: bool) -> object:
    """All that programs over these fields depend on; None where a file would have to be compared, too."""
    model = resolve(job.model, allow_files)
    if model.checkpoint is not None:
        return None
    base = changed(with_draft(with_teacher(job, allow_files), allow_files), dict.fromkeys(names, 1)).model_dump_json(
        exclude_unset=True
    )
    return base, model.spec.model_dump_json(), frozenset(names)


class Block:
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
            question = question_of(job, self.inner, self.allow_files)
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
