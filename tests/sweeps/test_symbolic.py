"""Numbers that remember how they were computed: where the recorded conditions hold, expressions are what plain numbers give."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from estimator.sweeps.bounds import Intervals
from estimator.sweeps.evaluation import Evaluation
from estimator.sweeps.sym import Sym
from estimator.sweeps.trace import Trace

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "rounded up": lambda b, s: -(-b * s * 6 // 512) * 512,
    "exact": lambda b, s: (b * s * 4096) // (b * s),
    "rounded twice": lambda b, s: -(-(-(-s // 32) * 32 * b) // 100) + (7 * s + 3) // 5,
    "a remainder": lambda b, s: s % 8 + divmod(s, b)[1] + 7 // s + 100 % b,
    "products and sums": lambda b, s: math.prod((b, s, 3)) + sum([b, s, 3]) - b + (s + 1) ** 2,
    "a power of two": lambda b, s: 1 << (s * b - 1).bit_length(),
    "larger or smaller": lambda b, s: max(s, 100) + min(b * 3, s) + abs(b - s),
    "fractions": lambda b, s: math.ceil(s * b / 3 * 1.5) + math.floor(1.25 * s) + round(s / 7) + math.ceil(2 - b / 3),
    "branches": lambda b, s: (s if s % 8 else 8 * b) + (1 if b == 3 else 2 if b * s > 500 else b) + (5 if s / b < 4 else 6),
    "an index": lambda b, s: sum(range(b)) + len([0] * (s // 50)) + int(s / 2),
    "a dictionary": lambda b, s: {s: b, s + 0: 2 * b}[s],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_where_its_conditions_hold_an_expression_is_the_number(name: str) -> None:
    function, rng, compared = FUNCTIONS[name], Random(name), 0
    for _ in range(40):
        trace, here = Trace(), (rng.randint(1, 12), rng.randint(1, 300))
        found = function(*(trace.field(field, value) for field, value in zip("bs", here, strict=True)))
        assert (found.hint if isinstance(found, Sym) else found) == function(*here)
        points = [here] + [(rng.randint(1, 12), rng.randint(1, 300)) for _ in range(100)]
        evaluation = Evaluation(trace.atoms, {field: np.asarray([p[i] for p in points]) for i, field in enumerate("bs")})
        holding = np.ones(len(points), bool)
        for guard in trace.guards.values():
            holding &= evaluation.holds(guard)
        assert holding[0]
        said = np.broadcast_to(
            evaluation.polynomial(found.terms) if isinstance(found, Sym) else np.asarray(found), (len(points),)
        )
        assert [said[i] for i in np.flatnonzero(holding)] == [function(*points[i]) for i in np.flatnonzero(holding)]
        compared += int(holding.sum())
    assert compared > 40 or name == "an index"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bounds_hold_in_a_box(name: str) -> None:
    rng = Random(name)
    for _ in range(30):
        trace, low, high = (
            Trace(),
            {"b": rng.randint(1, 6), "s": rng.randint(1, 150)},
            {"b": rng.randint(6, 12), "s": rng.randint(150, 300)},
        )
        found = FUNCTIONS[name](*(trace.field(field, rng.randint(low[field], high[field])) for field in "bs"))
        fields = {field: np.asarray([rng.randint(low[field], high[field]) for _ in range(50)]) for field in "bs"}
        evaluation, within = Evaluation(trace.atoms, fields), Intervals(trace.atoms, low, high)
        for guard in trace.guards.values():
            assert (said := within.decided(guard)) is None or (evaluation.holds(guard) == said).all()
        if isinstance(found, Sym):
            values, (least, most) = evaluation.polynomial(found.terms), within.polynomial(found.terms)
            assert least <= values.min()
            assert values.max() <= most
            least, most = trace.bounds(found.terms)
            assert least <= values.min()
            assert values.max() <= most


def test_an_index_holds_for_one_value_and_an_order_for_many() -> None:
    trace = Trace()
    number = trace.field("n", 5)
    assert list(range(number)) == [0, 1, 2, 3, 4]
    assert number > 3
    assert [guard.relation for guard in trace.guards.values()] == ["==", ">"]
    assert number * 2 - number == number
    assert number + 1 > number
    assert len(trace.guards) == 2


def test_numbers_of_two_runs_are_never_equal() -> None:
    one, other = Trace().field("n", 5), Trace().field("n", 5)
    assert one != other
    assert len({one, other}) == 2
