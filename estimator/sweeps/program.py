"""A tape whose sizes are expressions, as a program: what is alive at each moment that can be the peak, as rows of numbers.

What is alive at a moment is a sum of sizes, each a polynomial over the atoms of a symbolic run. So each moment is one row, a
coefficient for each monomial that occurs, and the peak is the largest product of a row with the monomials' values. A slot that
stands for n layers is highest in its first pass or in its last (`tape/replay.py`), so it gives two rows for each of its moments.
A row that is nowhere above another is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

from estimator.sweeps.bounds import Bounds, Intervals, bounds
from estimator.sweeps.evaluation import Evaluation
from estimator.sweeps.polynomials import Monomial
from estimator.sweeps.sym import Sym
from estimator.sweeps.trace import Atom, Trace
from estimator.tape.replay import Stretch, folded
from estimator.tape.tape import Tape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Moments:
    """`rows`: [moments, monomials]; `resident`: [monomials], what is alive when the first phase after loading begins.

    `course` says what happens on the tape but for its sizes; these are `sizes` [kinds of storage, monomials], of storage i that
    of kind `kinds[i]`.
    """

    monomials: tuple[Monomial, ...]
    rows: Array
    resident: Array
    bounds: Bounds
    course: int
    kinds: Array
    sizes: Array

    @property
    def nbytes(self) -> int:
        """What it takes of the memory of this process, about."""
        return sum(each.nbytes for each in (self.rows, self.rows, self.resident, self.kinds, self.sizes)) + 200 * len(
            self.monomials
        )

    def played(self, atoms: list[Atom], fields: Mapping[str, Array]) -> tuple[Array, Array]:
        """The peak and what is resident, in bytes, at each point of fields that broadcast against each other: whole numbers below
        2^53, in float64, [points]."""
        import numpy as np

        low = {name: float(values.min()) for name, values in fields.items()}
        high = {name: float(values.max()) for name, values in fields.items()}
        rows = self.rows[self.bounds.highest(Intervals(atoms, low, high))]
        used = np.flatnonzero((rows != 0).any(axis=0) | (self.resident != 0))
        values = monomial_values(atoms, [self.monomials[i] for i in used], fields)
        return (rows[:, used] @ values).max(axis=0), self.resident[used] @ values


def moments(tape: Tape, trace: Trace) -> Moments:
    """The moments of a tape that was written with `trace`'s numbers."""
    import numpy as np

    expressions = [size.terms if isinstance(size, Sym) else ({(): size} if size else {}) for size in tape.sizes]
    monomials: tuple[Monomial, ...] = tuple(
        sorted({monomial for terms in expressions for monomial in terms}, key=lambda m: (len(m), m))
    )
    at = {monomial: column for column, monomial in enumerate(monomials)}
    table = np.zeros((len(expressions), len(monomials)), np.int64)
    for row, terms in enumerate(expressions):
        for monomial, coefficient in terms.items():
            table[row, at[monomial]] = coefficient
    events = np.asarray(tape.events, np.int64)
    changes = table[np.abs(events)] * np.sign(events)[:, None]
    live, found, resident = np.zeros(len(monomials), np.int64), [], None
    for phase, block in zip(tape.phases, folded(tape, [0] * len(expressions)), strict=True):
        if phase.name != "load" and resident is None:
            resident = live
        net, rises = _walk(block, changes, events)
        found.append(live + rises)
        live = live + net
    signless = [all(trace.atoms[each].low >= 0 for each in monomial) for monomial in monomials]
    positive = np.asarray(signless, dtype=np.bool_)
    rows = _undominated(np.unique(np.concatenate(found), axis=0), positive)
    assert resident is not None
    sizes, kinds = np.unique(table, axis=0, return_inverse=True)
    return Moments(
        monomials,
        rows.astype(np.float64),
        resident.astype(np.float64),
        bounds(trace.atoms, monomials, rows.astype(np.float64)),
        course(tape),
        kinds.ravel().astype(np.int32),
        sizes.astype(np.float64),
    )


def course(tape: Tape) -> int:
    """A number that is the same for two tapes if the same happens on them, whatever the sizes.

    What is freed after the end does not count: it goes in no certain order.
    """
    marks = [
        (mark.start, mark.slot and tuple((slot.label, index(slot.repeat)) for slot in mark.slot.path)) for mark in tape.marks
    ]
    phases = [(phase.start, phase.name) for phase in tape.phases]
    return hash((tuple(tape.events[: tape.stop]), tuple(marks), tuple(tape.operations), tuple(phases), tape.stop))


def _walk(block: Stretch, changes: Array, events: Array) -> tuple[Array, Array]:
    """What one pass changes, and the bytes above its start at its beginning, at each birth, of the first pass and the last."""
    import numpy as np

    nothing = np.zeros((1, changes.shape[1]), np.int64)
    if not block.blocks:
        if block.start == block.stop:
            return nothing[0], nothing
        run = np.cumsum(changes[block.start : block.stop], axis=0)
        births = events[block.start : block.stop] > 0
        return run[-1], np.concatenate([nothing, run[births]])
    net, found = nothing[0], [nothing]
    for inner in block.blocks:
        repeat = index(inner.repeat)
        change, rises = _walk(inner, changes, events)
        found.append(net + rises)
        if repeat > 1:
            found.append(net + (repeat - 1) * change + rises)
        net = net + repeat * change
    return net, np.unique(np.concatenate(found), axis=0)


def _undominated(rows: Array, positive: Array) -> Array:
    """Without the rows that are nowhere above another. Monomials that are not `positive` must be equal for that."""
    import numpy as np

    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    kept: list[int] = []
    alive = np.ones(len(rows), bool)
    for i in range(len(rows)):
        if alive[i]:
            kept.append(i)
            difference = rows[i] - rows[i + 1 :]
            alive[i + 1 :] &= ~((difference >= 0)[:, positive].all(axis=1) & (difference == 0)[:, ~positive].all(axis=1))
    return rows[kept]


def monomial_values(atoms: list[Atom], monomials: Sequence[Monomial], fields: Mapping[str, Array]) -> Array:
    """[monomials, points] in float64, of fields that broadcast against each other."""
    import numpy as np

    evaluation = Evaluation(atoms, fields)
    shape = np.broadcast_shapes(*[np.shape(values) for values in fields.values()])
    values = np.empty((len(monomials), *shape))
    for row, each in enumerate(monomials):
        values[row] = evaluation.monomial(each)
    return values.reshape(len(monomials), -1)
