"""A training step of one rank of a pipeline.

It is not simulated pass by pass. One micro-batch goes through all chunks, which says what each pass adds, leaves and frees. From
that follows at which action of the rank's list most is alive. That moment is simulated: what waits then, and the passes up to it.
What waits is alike, so of each chunk it is one slot of the tape.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from estimator.families.build import Builder
from estimator.megatron.schedule import Rounds
from estimator.parallel.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Action, waiting
from estimator.tape.replay import replay
from estimator.tape.slots import Slot
from estimator.training.optimizers import Optimizer

SHORT = 4
"""The largest number of actions of a list that is simulated as it is."""

Passes = dict[tuple[str, int], tuple[int, int]]
"""Per kind of pass and chunk: bytes that it leaves, and those by which it rises."""


def train(build: Builder, rounds: Rounds, optimizer: Optimizer, literally: bool = False) -> None:
    """Simulate a step: what its schedule has alive at most, or `literally` each action of it."""
    tape, actions = build.tape, rounds.actions
    trained = [p for p in build.parameters if p.trainable]
    build.sharding.prepare(trained)
    states = optimizer.states(tape, trained)
    if literally or len(actions) <= SHORT:
        for number in range(len(actions)):
            rounds.play(number, counted=True)
        rounds.forget()
    else:
        for span in worst(rounds, passes(rounds)):
            _play(rounds, span)
    tape.begin("optimizer_step")
    build.sharding.step(lambda: rounds.scaler.step(lambda: optimizer.step(tape, trained)))
    rounds.scaler.update()
    tape.finish()
    del states


def passes(rounds: Rounds) -> Passes:
    """One micro-batch through all chunks, aside, which counts; and another, if a schedule has both kinds of backward pass."""
    chunks, kinds = range(len(rounds.stages)), {action.kind for action in rounds.actions}
    played = []
    for kind in (BACKWARD, INPUT):
        if kind not in kinds:
            continue
        ways = (kind, WEIGHT) if kind == INPUT else (kind,)
        for action in [Action(FORWARD, i, 0) for i in chunks] + [Action(way, i, 0) for way in ways for i in reversed(chunks)]:
            rounds.begin(action, counted=kind == BACKWARD or BACKWARD not in kinds, aside=True)
            rounds.do(action)
            rounds.release_sent()
            rounds.forget()
            played.append(action)
    phases = replay(rounds.tape).phases[1:]
    return {
        (action.kind, action.chunk): (phase.end_bytes - phase.start_bytes, phase.peak_bytes - phase.start_bytes)
        for action, phase in zip(played, phases, strict=True)
    }


def worst(rounds: Rounds, found: Passes) -> list[range]:
    """The actions to simulate: in forward and in backward that at which most is alive, from where a pass in each direction came
    before it, which leave what a round begins with."""
    actions = rounds.actions
    beside, size = _beside(rounds), rounds.stages[0].hidden("empty").nbytes
    live, heights = 0, []
    for action, count in zip(actions, beside, strict=True):
        net, top = found[action.kind, action.chunk]
        heights.append(live + top + count * size)
        live += net
    numbers = range(len(actions))
    most = max((i for i in numbers if actions[i].kind != FORWARD), key=heights.__getitem__)
    ahead = max((i for i in numbers if actions[i].kind == FORWARD), key=lambda i: (heights[i], i < most, i))
    first, second = sorted((_reaching(actions, most), _reaching(actions, ahead)), key=lambda span: span.stop)
    if second.start <= first.stop:
        return [range(min(first.start, second.start), second.stop)]
    return [first, second]


def _beside(rounds: Rounds) -> list[int]:
    """How many hidden states and gradients of other passes are alive during each action: those that `Rounds` has names for."""
    got = made = sent = next_input = next_gradient = False
    found = []
    for i, (kind, chunk, _) in enumerate(rounds.actions):
        stage = rounds.stages[chunk]
        ahead = rounds.following(i) if rounds.ahead else None
        if kind == FORWARD:
            found.append(got + made + next_gradient)
            sent, next_input = not stage.last, ahead is not None and not ahead.first
        elif kind == WEIGHT:
            found.append(got + made + sent)
        else:
            found.append(made + (sent + next_input if rounds.ahead else 0))
            got, made = not stage.last and not rounds.ahead, not stage.first
            sent, next_gradient = sent and rounds.ahead, ahead is not None and not ahead.last
    return found


def _reaching(actions: list[Action], end: int) -> range:
    """Up to an action, from where a forward pass and a backward one came before it, if both did."""
    last = {action.kind == FORWARD: i for i, action in enumerate(actions[:end]) if action.kind != WEIGHT}
    return range(min(last.values(), default=end), end + 1)


def _play(rounds: Rounds, span: range) -> None:
    """Run the actions in `span`, with the micro-batches that wait before them. Those that the span takes up wait one by one,
    all others as one of each chunk."""
    actions, tape = rounds.actions, rounds.tape
    before: Counter[tuple[str, int]] = Counter()
    for now in waiting(actions[: span.start]):
        before = now
    window = [action for action in actions[span.start : span.stop] if action.kind != FORWARD]
    taken = Counter((INPUT if action.kind == WEIGHT else FORWARD, action.chunk) for action in window)
    several: dict[tuple[str, int], tuple[Slot, Any]] = {}
    tape.begin("forward", None)
    for kind in (INPUT, FORWARD):
        for chunk in range(len(rounds.stages)):
            alone = min(before[kind, chunk], taken[kind, chunk])
            if before[kind, chunk] > alone:
                slot = Slot("micro-batches", before[kind, chunk] - alone)
                with tape.within(slot):
                    _wait(rounds, kind, chunk)
                several[kind, chunk] = slot, rounds.queue(kind, chunk).pop()
            for _ in range(alone):
                _wait(rounds, kind, chunk)
    for number in span:
        rounds.play(number, counted=False)
    tape.begin("backward", None)
    rounds.release_sent()
    rounds.forget()
    _empty(rounds, several)


def _empty(rounds: Rounds, several: dict[tuple[str, int], tuple[Slot, Any]]) -> None:
    """What still waits is run: weights' gradients first, then the chunks from the last on."""
    for kind, run in ((INPUT, WEIGHT), (FORWARD, BACKWARD)):
        for chunk in reversed(range(len(rounds.stages))):
            while rounds.queue(kind, chunk):
                rounds.do(Action(run, chunk, 0))
                rounds.forget()
            if (kind, chunk) in several:
                slot, one = several.pop((kind, chunk))
                rounds.queue(kind, chunk).append(one)
                del one
                with rounds.tape.within(slot):
                    rounds.do(Action(run, chunk, 0))
                    rounds.forget()


def _wait(rounds: Rounds, kind: str, chunk: int) -> None:
    """A micro-batch of a chunk comes to wait for its backward pass (F), or for its weights' gradients (I)."""
    rounds.do(Action(FORWARD, chunk, 0))
    rounds.release_sent()
    if kind == INPUT:
        rounds.do(Action(INPUT, chunk, 0))
        rounds.forget()
