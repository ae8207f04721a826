"""A search for plans in pieces, in this process or by an executor's workers: the same answer, whoever finishes first.

Pieces are taken in rounds. All of a round begin with what was best before it, and what they find is put together in their order,
so that nothing depends on how many workers there are.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import lru_cache
from typing import NamedTuple

from estimator.planner.plan_answer import PlanRow
from estimator.planner.plan_candidates import Findings, Held, Trial
from estimator.planner.plan_rows import row
from estimator.planner.plan_search import PlanSearch
from estimator.sweeps.executors import results

PIECE, ROUND = 8, 16
"""Trials of a piece, and pieces of a round, at most: the first are small, so that the others know what is best early."""


class Progress(NamedTuple):
    """How far a search is: candidates of all that are settled, by a bound or by a simulation, and ways that none beats yet."""

    settled: int
    candidates: int
    simulated: int
    found: int


Watch = Callable[[Progress], None]


def search_all(asked: PlanSearch, watch: Watch, executor: Executor | None = None) -> None:
    """Settle every candidate, or as many as may be simulated; those in the order of what they promise.

    `executor`: whose workers settle pieces, where there is more than one round of them and no limit on what is simulated. An
    interrupt passes through, and what was found until then is kept.
    """
    trials, found = asked.trials(), asked.found
    if executor is not None and asked.most is None and len(trials) > PIECE * ROUND:
        question = _question(asked)
        for round_ in _rounds(trials):
            begun = found.begun()
            try:
                for part in results(executor, _settled, [(question, piece, begun) for piece in round_]):
                    found.add(part)
                    watch(_progress(found))
            finally:
                asked.confirm()
        return
    for round_ in _rounds(trials):
        first = found.begun()
        parts: list[Findings] = []
        try:
            for piece in round_:
                parts.append(first.begun())
                left = None if asked.most is None else asked.most - _sum(found, parts, "simulated")
                if not asked.settle(piece, parts[-1], lambda now=parts: watch(_progress(found, now)), left):  # type: ignore[misc]
                    asked.complete = False
                    return
        finally:
            for part in parts:
                found.add(part)
            asked.confirm()


def rows(asked: PlanSearch, held: Sequence[Held], executor: Executor | None = None) -> list[PlanRow]:
    """What is said of each way, with its neighbours."""
    if executor is None or len(held) < 2:
        return [row(asked, one) for one in held]
    return list(results(executor, _row, [(_question(asked), one) for one in held]))


def _rounds(trials: list[Trial]) -> Iterator[list[list[Trial]]]:
    at, size, many = 0, 1, 1
    while at < len(trials):
        yield [trials[start : start + size] for start in range(at, min(at + many * size, len(trials)), size)]
        at, size, many = at + many * size, min(2 * size, PIECE) if many > 1 else size, min(2 * many, ROUND)


def _progress(found: Findings, parts: Sequence[Findings] = ()) -> Progress:
    settled, simulated = (_sum(found, parts, name) for name in ("settled", "simulated"))
    ways = max(len(one.held) for one in (found, *parts))
    return Progress(settled, found.counts["candidates"], simulated, ways)


def _sum(found: Findings, parts: Sequence[Findings], name: str) -> int:
    return found.counts[name] + sum(part.counts[name] for part in parts)


def _question(asked: PlanSearch) -> bytes:
    """What a worker makes its own search of."""
    return pickle.dumps((asked.job, asked.levers, asked.points, asked.limits, asked.allow_files, None, asked.bounded))


@lru_cache(maxsize=2)
def _search(question: bytes) -> PlanSearch:
    """A worker's own search, with what it remembers."""
    return PlanSearch(*pickle.loads(question))


def _settled(question: bytes, trials: Sequence[Trial], found: Findings) -> Findings:
    """What a worker finds of a piece."""
    _search(question).settle(trials, found, lambda: None)
    return found


def _row(question: bytes, held: Held) -> PlanRow:
    return row(_search(question), held)
