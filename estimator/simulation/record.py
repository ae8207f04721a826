"""What a step allocates and frees as plain values, and how a deeper model's follows from those of shallow ones.

A model whose layers repeat does in each of its phases A B B … B C: something before the layers that are alike, the same for each
of them, something after. Recorded with two, three and four of them, the events of one more are what the longer record has and the
shorter has not; where four layers have it twice as often as three, any number of layers follows, event by event.
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
        found = insertions(first, second, third)
        if found is None:
            return None
        phases.append((name, grown(first, found, units - 2)))
    return _numbered(phases, _oldest_first(four))


def insertions(two: list[Token], three: list[Token], four: list[Token]) -> list[Insertion] | None:
    """What is to be put into the first sequence once to get the second, and twice to get the third; None where nothing does that.

    Each is as late as it can be, so that most of what follows is equal.
    """
    found: list[Insertion] = []
    i = j = k = 0
    while True:
        same = min(_equal(two, i, three, j), _equal(two, i, four, k))
        i, j, k = i + same, j + same, k + same
        if (i, j, k) == (len(two), len(three), len(four)):
            return found
        most = (len(three) - j) - (len(two) - i)
        lengths = [most] if i == len(two) else range(1, most + 1)
        twice = [n for n in lengths if n > 0 and _repeats(three, j, four, k, n)]
        if not twice:
            return None
        length = max(twice, key=lambda n: (min(_equal(two, i, three, j + n), _equal(two, i, four, k + 2 * n)), -n))
        found.append(Insertion(i, three[j : j + length]))
        j, k = j + length, k + 2 * length


def _repeats(three: list[Token], j: int, four: list[Token], k: int, length: int) -> bool:
    """Whether a block of the one sequence stands twice in the other."""
    block = three[j : j + length]
    return four[k : k + length] == block == four[k + length : k + 2 * length]


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
