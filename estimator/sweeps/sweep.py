"""One job over a whole grid of its fields: arrays of what `estimate` says of each point.

Where whole numbers of training or serving vary, a program answers (`structure.py`): the job is run once with symbols, which says
under which conditions the same operations run, and what is alive at each moment as expressions. Where a condition does not hold
it is run again, around a point that is left. Each program is compared with runs on numbers at the ends of what it is used for.
Points for which no program can be made are run one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.pipeline.judged import judged
from estimator.sweeps.arrays import BYTES, NO, NOT_SAID, ONE_BY_ONE, REFUSED, UNKNOWN, YES, Sweep
from estimator.sweeps.block import Block, question_of, remembered
from estimator.sweeps.executors import results
from estimator.sweeps.grid import Grid, grid
from estimator.sweeps.structure import Unsuited, program

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PIECE = 8
"""Points of which the allocator is asked by one worker at a time."""
FEW, FEW_SERVED = 32, 1000
"""Undecided points that are estimated one by one without being asked to: where the caching allocator decides, and where an
engine's own rules do, which takes a few milliseconds each."""


def sweep(
    job: Job | Mapping[str, Any] | str | Path,
    fields: Mapping[str, Sequence[Any]],
    allow_files: bool = True,
    reserves: bool = False,
    roomy: float = 0.0,
    executor: Executor | None = None,
    few: bool = False,
) -> Sweep:
    """What a job takes for all combinations of these values of its fields, to the byte as `estimate` says it.

    `fields`: values by path, as `training.sequence_length`. `reserves`: the caching allocator is asked where it decides whether a
    job fits, which takes as long as an estimate for each such point. `roomy`: a job that leaves this share of the card is said to
    fit without asking, if its host is not asked about (fragmentation seldom takes more than 5 %). `executor`: its workers share
    the values of fields that no program varies, and the questions to the allocator. `few`: where the bounds leave no more than
    `FEW` points undecided (`FEW_SERVED` of an engine that the allocator does not serve), these are estimated. A combination that
    is refused is masked. Raises `InvalidJob` for a job or a field that cannot be read, and `UnknownName`.
    """
    asked = grid(job, fields)
    found = _empty(asked)
    inner = _suited(asked, allow_files)
    parts = list(asked.outer(inner))
    if executor is None or len(parts) < 2:
        for outer, part in parts:
            Block(asked, inner, outer, found, part, allow_files, roomy).fill()
    else:
        done = results(executor, _filled, [(asked.at(outer), inner, outer, allow_files, roomy) for outer, _ in parts])
        for (_, part), one in zip(parts, done, strict=True):
            _put(found, part, one)
    _ask_reserves(asked, found, _undecided(found, reserves, few), allow_files, executor)
    return _masked(found)


def _filled(asked: Grid, inner: list[str], outer: dict[str, Any], allow_files: bool, roomy: float) -> Sweep:
    """A grid in which only fields vary that a program may vary."""
    found = _empty(asked)
    _, part = next(asked.outer(inner))
    Block(asked, inner, outer, found, part, allow_files, roomy).fill()
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
        question = question_of(base, some, allow_files)
        if question is not None and remembered.of(question):
            return True
        try:
            made = program(base, {name: first[name] for name in some}, allow_files)
        except Unsuited:
            return False
        if question is not None:
            remembered.add(question, made)
        return True

    known = question_of(base, asked.symbolic(least=1), allow_files)
    if known is not None and remembered.of(known):
        return asked.symbolic(least=1)
    if not names or possible(names):
        return names
    alone = [name for name in names if len(names) > 1 and possible([name])]
    return alone if len(alone) == 1 or (alone and possible(alone)) else alone[:1]


def _undecided(found: Sweep, reserves: bool, few: bool) -> Array:
    """Numbers of the points that the bounds do not decide, and that are to be estimated."""
    import numpy as np

    undecided = (found.fits == UNKNOWN) & (found.how != REFUSED)
    served = undecided & (found.total_bytes != NOT_SAID)
    trained = undecided & ~served
    wanted = np.zeros_like(undecided)
    for points, most in ((served, FEW_SERVED), (trained, FEW)):
        if reserves or (few and np.count_nonzero(points) <= most):
            wanted |= points
    return np.flatnonzero(wanted)


def _ask_reserves(asked: Grid, found: Sweep, undecided: Array, allow_files: bool, executor: Executor | None) -> None:
    """Estimate these points: where the caching allocator serves a job it is played."""
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
