"""How long a pipeline's ranks take for a step: their lists of actions, run through.

A pass begins when the rank has done what its list has before, and when what it is made from has come: of a forward pass the
result of the stage before, of a backward pass the gradient of the stage after. What is left of the slowest rank's time is the
pipeline's bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from estimator.parallel.schedules import FORWARD, WEIGHT, Pipeline

Seconds = Mapping[str, float]
"""Seconds of a pass of one chunk, by the kind of pass."""
Pass = tuple[bool, int, int]
"""Whether it is a forward pass; stage and micro-batch."""


class Step(NamedTuple):
    """An action of a rank: the pass that it waits for, and the one that it is, if another rank's may wait for it."""

    kind: str
    before: Pass | None
    this: Pass | None


def makespan(pipeline: Pipeline, seconds: Sequence[Seconds], transfer: float = 0.0) -> float:
    """Seconds from the first pass to the end of the last. `seconds`: each rank's; `transfer`: from rank to rank, while other
    passes run.

    Rounds in the midst of many are left out, and the slowest rank's time for as many is added; where transfers may be what a
    round waits for, the time that the last two groups of micro-batches add, if that is more. Of DualPipe one rank of each pair is
    timed: the other does the same from the other end.
    """
    return _makespan(pipeline, tuple(tuple(one.items()) for one in seconds), transfer)


@lru_cache(maxsize=256)
def _makespan(pipeline: Pipeline, items: tuple[tuple[tuple[str, float], ...], ...], transfer: float) -> float:
    """`makespan`, with its results remembered; `items`: each rank's seconds by kind of pass."""
    brief, seconds = pipeline.brief(), [dict(one) for one in items]
    lists = _lists(brief.half() if pipeline.schedule == "dualpipe" else brief)
    found = _played(lists, seconds, transfer)
    left_out = pipeline.micro_batches - brief.micro_batches
    if not left_out:
        return found
    each = max(sum(one[step.kind] for step in steps) for one, steps in zip(seconds, lists, strict=False)) / brief.micro_batches
    if transfer:
        group = 2 * max(pipeline.ranks, pipeline.group)
        fewer = brief._replace(micro_batches=brief.micro_batches - group)
        each = max(each, (found - _played(_lists(fewer), seconds, transfer)) / group)
    return found + each * left_out


def _played(lists: Sequence[Sequence[Step]], seconds: Sequence[Seconds], transfer: float) -> float:
    clocks, at = [0.0] * len(lists), [0] * len(lists)
    done: dict[Pass, tuple[float, int]] = {}
    waiting: dict[Pass, int] = {}
    ready = list(range(len(lists)))
    while ready:
        rank = ready.pop()
        steps, each, clock = lists[rank], seconds[rank], clocks[rank]
        for number in range(at[rank], len(steps)):
            kind, before, this = steps[number]
            if before is not None:
                if before not in done:
                    waiting[before], at[rank] = rank, number
                    break
                end, by = done[before]
                clock = max(clock, end if by == rank else end + transfer)
            clock += each[kind]
            if this is not None:
                done[this] = clock, rank
                if this in waiting:
                    ready.append(waiting.pop(this))
        clocks[rank] = clock
    assert not waiting
    return max(clocks)


@lru_cache(maxsize=8)
def _lists(pipeline: Pipeline) -> list[list[Step]]:
    """What each rank runs."""
    last = pipeline.stages - 1
    found = []
    for rank in range(pipeline.ranks):
        held, steps = pipeline.held(rank), []
        for kind, chunk, micro_batch in pipeline.actions(rank):
            forward, stage = kind == FORWARD, held[chunk]
            if kind == WEIGHT:
                steps.append(Step(kind, None, None))
                continue
            neighbour, ends = (stage - 1, stage == 0) if forward else (stage + 1, stage == last)
            before = None if ends else (forward, neighbour, micro_batch)
            steps.append(Step(kind, before, (forward, stage, micro_batch)))
        found.append(steps)
    return found
