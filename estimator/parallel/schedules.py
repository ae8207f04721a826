"""Pipeline schedules: what each rank runs, in order.

A rank holds one or several chunks of the model. Its list of actions says which pass of which chunk and micro-batch comes next;
how many micro-batches wait at once, and how long a rank is idle, both follow from the lists. After Megatron-LM at 23e00ed,
megatron/core/pipeline_parallel/schedules.py (1F1B, interleaved), torch 2.13, torch/distributed/pipelining/schedules.py (all but
DualPipe) and DeepSeek's DualPipe at 3da1bbe, dualpipe/dualpipe.py.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
"""A forward pass; a whole backward pass; one that leaves out the weights' gradients, and those gradients alone."""
SPLIT = frozenset({"zero-bubble", "zbv", "dualpipev", "dualpipe"})
"""Schedules in which weights' gradients may come later than those of inputs."""
V_SHAPED = frozenset({"zbv", "dualpipev"})
"""The second chunks of ranks follow each other from the last rank to the first."""


class Action(NamedTuple):
    """A pass of this rank's chunk `chunk`, of this micro-batch."""

    kind: str
    chunk: int
    micro_batch: int


class Pipeline(NamedTuple):
    """A schedule on so many ranks with so many chunks each; an interleaved one goes through a chunk with `group` micro-batches
    at a time."""

    schedule: str
    ranks: int
    chunks: int
    micro_batches: int
    group: int = 0

    @property
    def stages(self) -> int:
        """Parts that the model is cut into: of DualPipe each is on two ranks."""
        return self.ranks if self.schedule == "dualpipe" else self.ranks * self.chunks

    @property
    def turns(self) -> bool:
        """Whether a micro-batch goes from one chunk of a rank to the other at the last rank."""
        return self.schedule in V_SHAPED

    def shortened(self) -> Pipeline:
        """With so few micro-batches that a step is soon listed and holds as much: but of those schedules that hold all."""
        return self if self.schedule in ("gpipe", "looped-bfs") else self.brief()

    def brief(self) -> Pipeline:
        """Without rounds in the midst of many, which are all alike."""
        period = self.group if self.schedule in ("interleaved", "zero-bubble") else 2 if self.schedule == "dualpipe" else 1
        spare = max(0, self.micro_batches - 4 * max(self.ranks, self.group))
        return self._replace(micro_batches=self.micro_batches - spare // period * period)

    def half(self) -> Pipeline:
        """The DualPipeV that a rank of each pair of DualPipe runs."""
        return self._replace(schedule="dualpipev", ranks=self.ranks // 2, micro_batches=self.micro_batches // 2)

    def held(self, rank: int) -> tuple[int, ...]:
        """The stage that each chunk of a rank is."""
        if self.schedule == "dualpipe":
            first = min(rank, self.ranks - 1 - rank)
            return first, self.ranks - 1 - first
        if self.schedule in V_SHAPED:
            return rank, 2 * self.ranks - 1 - rank
        return tuple(rank + chunk * self.ranks for chunk in range(self.chunks))

    def actions(self, rank: int) -> list[Action]:
        """What a rank runs."""
        return list(_ORDERS[self.schedule](self, rank))


def waiting(actions: list[Action]) -> Iterator[Counter[tuple[str, int]]]:
    """After each action, how many micro-batches of a chunk wait: (F, chunk) for their backward pass, (I, chunk) for their
    weights' gradients. One counter, which goes on changing."""
    now: Counter[tuple[str, int]] = Counter()
    for kind, chunk, _ in actions:
        if kind == FORWARD:
            now[FORWARD, chunk] += 1
        elif kind == WEIGHT:
            now[INPUT, chunk] -= 1
        else:
            now[FORWARD, chunk] -= 1
            now[INPUT, chunk] += kind == INPUT
        yield now


def in_flight(actions: list[Action]) -> int:
    """The most micro-batches, of all chunks together, whose backward pass is to come."""
    return max(sum(count for (kind, _), count in now.items() if kind == FORWARD) for now in waiting(actions))


def _gpipe(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """All forward, then all backward."""
    each = range(pipeline.micro_batches)
    yield from (Action(FORWARD, 0, i) for i in each)
    yield from (Action(BACKWARD, 0, i) for i in each)


def _breadth_first(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """All micro-batches through one chunk after the other, and back in the opposite order (Lamy-Poirier, 2022)."""
    each, chunks = range(pipeline.micro_batches), range(pipeline.chunks)
    yield from (Action(FORWARD, chunk, i) for chunk in chunks for i in each)
    yield from (Action(BACKWARD, chunk, i) for chunk in reversed(chunks) for i in reversed(each))


def _one_forward_one_backward(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """p - r - 1 micro-batches forward, then one each way in turn (`forward_backward_pipelining_without_interleaving`)."""
    order = [(0, i) for i in range(pipeline.micro_batches)]
    return _alternating(order, order, pipeline.ranks - rank - 1)


def _interleaved(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """1F1B over several chunks: some passes forward, then one each way in turn (`get_schedule_table`,
    `get_pp_rank_microbatches`)."""
    further = pipeline.ranks - rank - 1
    return _alternating(*_by_group(pipeline), (pipeline.chunks - 1) * pipeline.group + 2 * further)


def _zero_bubble(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """ZB-H1 of Qi et al. (2023), over one chunk or several: weights' gradients wait for as many passes as there are ranks before
    this one (`ScheduleInterleavedZeroBubble`)."""
    warm = (pipeline.chunks - 1) * pipeline.group + pipeline.ranks - rank - 1
    later: deque[tuple[int, int]] = deque()
    for action in _alternating(*_by_group(pipeline), warm):
        if action.kind == FORWARD:
            yield action
            continue
        yield action._replace(kind=INPUT)
        later.append((action.chunk, action.micro_batch))
        if len(later) > rank:
            yield Action(WEIGHT, *later.popleft())
    yield from (Action(WEIGHT, *one) for one in later)


def _by_group(pipeline: Pipeline) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(chunk, micro-batch) in the order of forward and of backward passes."""
    chunks, group = range(pipeline.chunks), pipeline.group
    groups = [range(i, min(i + group, pipeline.micro_batches)) for i in range(0, pipeline.micro_batches, group)]
    forward = [(chunk, i) for members in groups for chunk in chunks for i in members]
    return forward, [(pipeline.chunks - 1 - chunk, i) for chunk, i in forward]


def _alternating(forward: list[tuple[int, int]], backward: list[tuple[int, int]], warm: int) -> Iterator[Action]:
    """So many forward passes, then one each way in turn, then the backward passes that are left."""
    warm = min(warm, len(forward))
    yield from (Action(FORWARD, *one) for one in forward[:warm])
    for i, one in enumerate(backward):
        if warm + i < len(forward):
            yield Action(FORWARD, *forward[warm + i])
        yield Action(BACKWARD, *one)


class _Counted:
    """The next micro-batch of each pass of each chunk. Weights' gradients that were put off come in their order."""

    def __init__(self) -> None:
        self.next: Counter[tuple[bool, int]] = Counter()
        self.later: deque[tuple[int, int]] = deque()

    def __call__(self, kind: str, chunk: int) -> Iterator[Action]:
        of = kind == FORWARD, chunk
        if kind == INPUT:
            self.later.append((chunk, self.next[of]))
        yield Action(kind, chunk, self.next[of])
        self.next[of] += 1

    def weight(self) -> Iterator[Action]:
        """The oldest that waits, if one does."""
        if self.later:
            yield Action(WEIGHT, *self.later.popleft())


def _zbv(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """ZB-V of Qi et al. (2024). It is laid out for 2 p - 1 micro-batches or more: of fewer the others are left out."""
    ranks, count = pipeline.ranks, max(2 * pipeline.ranks - 1, pipeline.micro_batches)
    return (action for action in _zbv_of(ranks, rank, count) if action.micro_batch < pipeline.micro_batches)


def _zbv_of(ranks: int, rank: int, count: int) -> Iterator[Action]:
    do = _Counted()
    for _ in range(2 * (ranks - rank) - 1):
        yield from do(FORWARD, 0)
    for _ in range(rank):
        yield from do(FORWARD, 1)
        yield from do(FORWARD, 0)
    for _ in range(ranks - rank):
        yield from do(FORWARD, 1)
        yield from do(INPUT, 1)
        yield from do.weight()
    while do.next[True, 1] < do.next[True, 0] or do.next[True, 0] < count:
        if do.next[True, 0] < count:
            yield from do(FORWARD, 0)
        yield from do(INPUT, 0)
        yield from do.weight()
        yield from do(FORWARD, 1)
        yield from do(INPUT, 1)
        yield from do.weight()
    for _ in range(rank):
        yield from do(INPUT, 0)
        yield from do(INPUT, 1)
    firsts = deque(one for one in do.later if one[0] == 0)
    others = [one for one in do.later if one[0] == 1]
    for _ in range(ranks - rank):
        yield from do(INPUT, 0)
        firsts.append(do.later[-1])
        yield Action(WEIGHT, *firsts.popleft())
    yield from (Action(WEIGHT, *one) for one in others)
    yield from (Action(WEIGHT, *one) for one in firsts)


def _dualpipev(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """DeepSeek's DualPipeV. What it runs side by side, a forward pass and a backward one, comes in this order."""
    do, ranks, after = _Counted(), pipeline.ranks, pipeline.ranks - rank - 1
    for _ in range(2 * after):
        yield from do(FORWARD, 0)
    for _ in range(rank + 1):
        yield from do(FORWARD, 0)
        yield from do(FORWARD, 1)
    for _ in range(after):
        yield from do(INPUT, 1)
        yield from do.weight()
        yield from do(FORWARD, 1)
    for _ in range(pipeline.micro_batches - 2 * ranks + rank + 1):
        yield from do(FORWARD, 0)
        yield from do(BACKWARD, 1)
        yield from do(FORWARD, 1)
        yield from do(BACKWARD, 0)
    for _ in range(after):
        yield from do(BACKWARD, 1)
        yield from do(FORWARD, 1)
        yield from do(BACKWARD, 0)
    kinds = [BACKWARD] * (rank + 1) + [INPUT] * (rank + 1)
    for i in range(rank + 1):
        yield from do(kinds[2 * i], 1)
        yield from do(kinds[2 * i + 1], 0)
    for _ in range(after):
        yield from do.weight()
        yield from do(INPUT, 0)
    for _ in range(rank + 1):
        yield from do.weight()


def _dualpipe(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """DualPipe: half of the micro-batches go from each end to the other; a rank and the one opposite it run what a rank of
    half as many runs in DualPipeV."""
    return _dualpipev(pipeline.half(), min(rank, pipeline.ranks - 1 - rank))


_ORDERS: dict[str, Callable[[Pipeline, int], Iterator[Action]]] = {
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "gpipe": _gpipe,
    "looped-bfs": _breadth_first,
    "zero-bubble": _zero_bubble,
    "zbv": _zbv,
    "dualpipev": _dualpipev,
    "dualpipe": _dualpipe,
}
