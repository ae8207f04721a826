"""What a step allocates and frees as plain values, and how a deeper model's follows from those of shallow ones.

A model whose layers repeat does in each of its phases A B B … B C: something before the layers that are alike, the same for each
of them, something after. Recorded with two, three and four of them, the events of one more are what the longer record has and the
shorter has not; if two of the steps in between agree, any number of layers follows, event by event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple


class Kind(NamedTuple):
    """What a storage is: its bytes as allocated, the operation that made it, what it is counted as, the tensor's form."""

    nbytes: int
    operation: str
    component: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """`events`: +i when storage i is born, -i when it dies; `kinds` of each storage, of which 0 is none; where phases start."""

    kinds: Sequence[Kind]
    events: Sequence[int]
    phases: Sequence[tuple[int, str]]

    def parts(self) -> list[tuple[str, list[Token]]]:
        """Each phase with its events, by what they are of.

        What dies in one go is sorted: autocast drops its copies of weights in the order of a hash table.
        """
        ends = [*(start for start, _ in self.phases[1:]), len(self.events)]
        return [
            (name, _sorted([(event > 0, self.kinds[abs(event)]) for event in self.events[start:end]]))
            for (start, name), end in zip(self.phases, ends, strict=True)
        ]


def _sorted(tokens: list[Token]) -> list[Token]:
    runs = (list(run) for _, run in groupby(tokens, key=lambda token: token[0]))
    return [token for run in runs for token in (run if run[0][0] else sorted(run, key=str))]


Token = tuple[bool, Kind]
"""Whether something is born, and of which kind it is."""


class Insertion(NamedTuple):
    """Where a longer record has more, and what."""

    at: int
    block: list[Token]


def deeper(two: Record, three: Record, four: Record, units: int) -> Record | None:
    """The record of a model with so many repeated parts, from those with two, three and four of them; None where these are in no
    progression."""
    phases: list[tuple[str, list[Token]]] = []
    for (name, first), (_, second), (_, third) in zip(two.parts(), three.parts(), four.parts(), strict=True):
        found = insertions(first, second)
        if found is None or grown(first, found, 2) != third:
            return None
        phases.append((name, grown(first, found, units - 2)))
    return _numbered(phases, _oldest_first(four))


def insertions(short: list[Token], long: list[Token]) -> list[Insertion] | None:
    """What is to be put into one sequence to get the other; None where that is not all. Each is as late and as short as it can be
    so that most of what follows is equal."""
    found: list[Insertion] = []
    i = j = 0
    while True:
        same = _equal(short, i, long, j)
        i, j = i + same, j + same
        if j == len(long):
            return found if i == len(short) else None
        most = (len(long) - j) - (len(short) - i)
        if most <= 0:
            return None
        length = most if i == len(short) else max(range(1, most + 1), key=lambda n: (_equal(short, i, long, j + n), -n))
        found.append(Insertion(i, long[j : j + length]))
        j += length


def _equal(a: list[Token], i: int, b: list[Token], j: int) -> int:
    """How many tokens are the same from two places on."""
    n = 0
    most = min(len(a) - i, len(b) - j)
    while n < most and a[i + n] == b[j + n]:
        n += 1
    return n


def grown(short: list[Token], found: list[Insertion], times: int) -> list[Token]:
    """A sequence with each insertion made so many times."""
    made: list[Token] = []
    at = 0
    for insertion in found:
        made += short[at : insertion.at] + insertion.block * times
        at = insertion.at
    return made + short[at:]


def _oldest_first(record: Record) -> set[Kind]:
    """Kinds of which the oldest dies first; of all others it is taken to be the youngest."""
    alive: dict[Kind, list[int]] = {}
    old: Counter[Kind] = Counter()
    for event in record.events:
        kind = record.kinds[abs(event)]
        if event > 0:
            alive.setdefault(kind, []).append(event)
            continue
        place = alive[kind].index(-event)
        old[kind] += (place == 0) - (place == len(alive[kind]) - 1)
        del alive[kind][place]
    return {kind for kind, more in old.items() if more > 0}


def _numbered(phases: list[tuple[str, list[Token]]], oldest: set[Kind]) -> Record:
    """Events with storages of their own: each death is that of one of its kind."""
    kinds = [Kind(0, "", "temporaries")]
    events: list[int] = []
    starts = []
    alive: dict[Kind, list[int]] = {}
    for name, tokens in phases:
        starts.append((len(events), name))
        for born, kind in tokens:
            if born:
                alive.setdefault(kind, []).append(len(kinds))
                events.append(len(kinds))
                kinds.append(kind)
            else:
                events.append(-alive[kind].pop(0 if kind in oldest else -1))
    return Record(kinds, events, starts)
