"""The edge of what fits, by made-up answers: beside trying every value."""

from __future__ import annotations

from random import Random

import pytest

from estimator.planner.edge import Search, Seen

ROW = range(1, 2**20)


def found(row: range, start: int, needs, capacity: int, jump=lambda value: 0, refused=lambda value: False, tries: int = 32):  # type: ignore[no-untyped-def]
    """The edge where a value needs so much, and at most a `jump` more as a whole; how many were asked."""
    asked = set()

    def least(value: int) -> Seen:
        if refused(value):
            return Seen(False, True)
        asked.add(value)
        return Seen(needs(value) <= capacity, False, capacity - needs(value))

    def whole(value: int) -> Seen:
        if refused(value):
            return Seen(False, True)
        total = needs(value) + jump(value)
        return Seen(total <= capacity, False, capacity - total)

    return Search(row, least, whole, tries).edge(start), len(asked)


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 7, 2048, 2**20 - 1])
@pytest.mark.parametrize("capacity", [120, 5_000, 123_456, 10**8, 10**11])
def test_what_rises_is_closed_in_on_quickly(start: int, capacity: int) -> None:
    def needs(value: int) -> int:
        return 100 + 10 * value + value * value // 1000

    edge, asked = found(ROW, start, needs, capacity)
    expected = max(value for value in ROW if needs(value) <= capacity)
    assert edge.value == expected
    assert edge.untried == 0
    assert edge.beyond == (expected + 1 if expected < ROW[-1] else None)
    assert asked <= 60


@pytest.mark.parametrize("start", [1, 8, 64, 4096])
@pytest.mark.parametrize("capacity", [3, 10, 999, 10**6])
def test_the_smallest_of_what_falls(start: int, capacity: int) -> None:
    edge, _ = found(range(2**20, 0, -1), start, lambda value: -(-(10**6) // value), capacity)
    assert edge.value == -(-(10**6) // capacity)


def test_an_end_of_the_row_and_none() -> None:
    assert found(ROW, 5, lambda value: 1, 1)[0] == (2**20 - 1, None, 0, 2**20 - 1)
    assert found(ROW, 5, lambda value: 2, 1)[0] == (None, None, 0, None)
    assert found(range(20), 5, lambda value: 2, 1)[0] == (None, None, 0, None)
    assert found(ROW, 1, lambda value: 2 - (value > 3), 1)[0].value == 2**20 - 1


@pytest.mark.parametrize("step", [2, 3, 16, 48])
def test_refused_values_between_are_stepped_over(step: int) -> None:
    edge, _ = found(ROW, 5 * step, lambda value: value, 100_001, refused=lambda value: value % step != 0)
    assert edge.value == 100_001 // step * step
    assert edge.beyond == edge.value + step


def test_heads_that_must_divide() -> None:
    legal = {1, 2, 3, 4, 6, 12}
    edge, _ = found(range(2**20, 0, -1), 6, lambda value: 12 // value, 5, refused=lambda value: value not in legal)
    assert edge.value == 3
    assert edge.beyond == 2


def test_values_beyond_which_less_is_needed() -> None:
    edge, _ = found(ROW, 100, lambda value: value + (40 if value % 8 else 0), 1003)
    assert edge.value == 1000


@pytest.mark.parametrize("seed", range(40))
def test_jumps_are_searched_value_by_value(seed: int) -> None:
    draw = Random(seed)
    row, capacity, most = range(1, 3000), draw.randrange(20, 30_000), draw.choice([0, 5, 50, 300, 5000])
    jumps = [draw.randrange(most + 1) for _ in range(3001)]
    edge, _ = found(row, draw.choice([1, 16, 777]), lambda value: 10 * value, capacity, lambda value: jumps[value], tries=64)
    fitting = [value for value in row if 10 * value + jumps[value] <= capacity]
    if edge.untried == 0:
        assert edge.value == max(fitting, default=None)
    elif edge.value is not None:
        assert edge.value in fitting
        assert edge.value + 1 not in fitting
        assert edge.value <= max(fitting) <= edge.value + edge.untried
