"""The least recomputation that meets a budget of bytes for activations.

Layers that are alike cost alike, so what is chosen is how many are recomputed in each way. All figures are read off tapes: what a
layer keeps in a way (a), what its backward adds to that (p), and the operations that it repeats (f). The first layers are those
that keep least, and the peak is where the backward pass enters the last layer of some way:

    peak = base + max over the ways w in use of (sum over the ways up to w of n·a, + p of w)

The least Σ n·f with a peak within the budget is searched exhaustively, and what is found is simulated. Where that takes more
than the sum said, the search goes on with the difference taken off: what is given back is always what a tape said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from estimator.contract.errors import Contradiction
from estimator.contract.units import gib
from estimator.tape.kernels import flops
from estimator.tape.replay import Stretch, folded
from estimator.tape.slots import Slot
from estimator.tape.tape import ACTIVATION, Tape
from estimator.training.recomputation import FIELD

Mix = tuple[int, ...]
"""Layers per way of recomputing, in the ways' order; the rest keep all."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a tape says of its activations in bytes: the most at any moment, those at the end of forward, and those that a layer
    leaves there (one of the layers that are alike); and of one micro-step the operations that are run again."""

    peak_bytes: int
    forward_end_bytes: int
    layer_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """A mix that meets a budget; and what there would be without recomputation."""

    mix: Mix
    played: Played
    without: Played


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to recompute a layer: bytes that the layer keeps, bytes that its backward adds at most, operations that are run
    again."""

    kept_bytes: int
    added_bytes: int
    flops: int


def activations(tape: Tape) -> Played:
    """What is counted as activations on a tape."""
    sizes = [size if part == ACTIVATION else 0 for size, part in zip(tape.sizes, tape.components, strict=True)]
    live = most = end = layer = 0
    for phase, block in zip(tape.phases, folded(tape, sizes), strict=True):
        most = max(most, live + block.top)
        live += block.net
        if phase.name == "forward":
            end = live
            layer = _of_a_layer(block)
    return Played(most, end, layer, flops(tape, "backward").repeated)


def _of_a_layer(phase: Stretch) -> int:
    """What the layer that stands for most leaves behind, in all of the stays in its slot: casts of its weights go last."""
    left: dict[Slot, int] = {}
    for stay in phase.blocks:
        leaf = stay
        while leaf.blocks:
            leaf = leaf.blocks[0]
        if leaf.slot is not None:
            slot = leaf.slot.path[0]
            left[slot] = left.pop(slot, 0) + stay.net
    return left[max(left, key=lambda slot: slot.repeat)]


def cheapest(budget: int, layers: int, ways: int, alike: bool, play: Callable[[Mix], Played]) -> Chosen:
    """The mix of least recomputation within a budget in bytes. Raises `InvalidJob` if there is none.

    `ways`: how many there are to recompute a layer, those that keep least first. `alike`: whether all layers do the same; where
    they do not, only the first way is used, and every number of layers is simulated.
    """
    without = play((0,) * ways)
    if without.peak_bytes <= budget:
        return Chosen((0,) * ways, without, without)
    search = _alike if alike else _one_by_one
    for mix in search(budget, layers, ways, play):
        played = play(mix)
        if played.peak_bytes <= budget:
            return Chosen(mix, played, without)
    least = min(play(_only(way, layers, ways)).peak_bytes for way in range(ways))
    raise Contradiction(
        f"activations take at least {gib(least)} ({least} bytes) at some moment, also where every layer is recomputed: write a "
        "budget of as much, or a smaller sequence_length or micro_batch_size",
        f"{FIELD}.budget",
    )


def _only(way: int, layers: int, ways: int) -> Mix:
    return tuple(layers * (i == way) for i in range(ways))


def _one_by_one(budget: int, layers: int, ways: int, play: Callable[[Mix], Played]) -> Iterator[Mix]:
    for count in range(1, layers + 1):
        yield _only(0, count, ways)


def _alike(budget: int, layers: int, ways: int, play: Callable[[Mix], Played]) -> Iterator[Mix]:
    """Mixes that should meet the budget, the cheapest first, each with more room left for what the last one took too much."""
    said = [play(_only(way, layers, ways)) for way in range(ways)] + [play(_only(0, 1, ways))]
    measured = [_Way(p.layer_bytes, p.peak_bytes - p.forward_end_bytes, p.flops // layers) for p in said[:-1]]
    measured.append(_Way(said[-1].layer_bytes, said[-1].peak_bytes - said[-1].forward_end_bytes, 0))
    base = said[0].forward_end_bytes - layers * said[0].layer_bytes
    limit = budget - base
    while (mix := _least(limit, layers, measured)) is not None:
        yield mix
        limit -= max(1, play(mix).peak_bytes - budget)


def _least(limit: int, layers: int, ways: Sequence[_Way]) -> Mix | None:
    """The cheapest numbers of layers per way whose peak by the equation is within the limit; all layers are in some way.

    Of equally cheap ones that which recomputes parts of the fewest layers, and then has the lowest peak.
    """
    best: tuple[int, int, int, Mix] | None = None

    def extend(mix: Mix, left: int, kept: int, cost: int, peak: int) -> None:
        nonlocal best
        way = ways[len(mix)]
        last = len(mix) + 1 == len(ways)
        for count in (left,) if last else range(left + 1):
            now, price = kept + count * way.kept_bytes, cost + count * way.flops
            high = max(peak, now + way.added_bytes) if count else peak
            again = sum(mix) + (0 if last else count)
            if high > limit or (best is not None and (price, again, high) >= best[:3]):
                return
            if last:
                best = price, again, high, (*mix, count)
            elif now + (left - count) * min(later.kept_bytes for later in ways[len(mix) + 1 :]) <= limit:
                extend((*mix, count), left - count, now, price, high)

    extend((), layers, 0, 0, 0)
    return None if best is None else best[3][:-1]
