"""A step of many layers from those of few: sequences in progression, and what is in none."""

from __future__ import annotations

from itertools import accumulate

import pytest

from estimator.simulation.record import Kind, Record, deeper

EMBEDDING, SAVED, TEMPORARY, LOSS = (Kind(512 * n, name, "activations") for n, name in enumerate(("a", "b", "c", "d"), 1))


def step(layers: int, every: int = 1) -> Record:
    """Layers that each save something, and free it in backward; each `every`-th makes something in between, too."""
    kinds: list[Kind] = [Kind(0, "", "temporaries")]
    events: list[int] = []

    def born(kind: Kind) -> int:
        kinds.append(kind)
        events.append(len(kinds) - 1)
        return len(kinds) - 1

    first = born(EMBEDDING)
    phases = [(0, "load"), (len(events), "forward")]
    saved = []
    for layer in range(layers):
        within = born(TEMPORARY)
        saved.append(born(SAVED))
        if layer % every == 0:
            events.append(-born(LOSS))
        events.append(-within)
    loss = born(LOSS)
    phases.append((len(events), "backward"))
    for held in reversed(saved):
        gradient = born(TEMPORARY)
        events += [-held, -gradient]
    events += [-loss, -first]
    return Record(kinds, events, phases)


def _live(record: Record) -> list[int]:
    return list(accumulate(record.kinds[abs(event)].nbytes * (1 if event > 0 else -1) for event in record.events))


@pytest.mark.parametrize("layers", [2, 3, 4, 5, 48])
def test_a_deeper_step_is_the_one_that_would_have_run(layers: int) -> None:
    found = deeper(step(2), step(3), step(4), layers)
    assert found is not None
    assert found.parts() == step(layers).parts()


def test_each_storage_dies_once_after_it_was_born() -> None:
    found = deeper(step(2), step(3), step(4), 30)
    assert found is not None
    alive: set[int] = set()
    for event in found.events:
        assert (event not in alive) if event > 0 else (-event in alive)
        alive ^= {abs(event)}
    assert not alive


def test_layers_that_are_not_alike_are_in_no_progression() -> None:
    assert deeper(step(2, 2), step(3, 2), step(4, 2), 10) is None


def test_what_dies_together_may_do_so_in_any_order() -> None:
    three = step(3)
    events = list(three.events)
    events[-2:] = reversed(events[-2:])
    found = deeper(step(2), Record(three.kinds, events, three.phases), step(4), 9)
    assert found is not None
    assert max(_live(found)) == max(_live(step(9)))
