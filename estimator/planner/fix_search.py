"""Edits of a file that make its job fit, searched for on the text itself: edited, read again, estimated again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from estimator.contract.errors import WillItFitError
from estimator.exchange import Surroundings, read
from estimator.exchange.configuration import Framework
from estimator.exchange.edits import CommandText, SettingsText, opened
from estimator.exchange.found import Found, field_of
from estimator.pipeline.estimation import time_of
from estimator.pipeline.judged import Judged, judged
from estimator.planner.moves import Move, moves, numbers

WORTH = 0.005
"""Share of what is needed that a change saves at least, to be tried with others."""
MOST = 4
"""Fixes that are proposed."""
ACCUMULATION = "training.gradient_accumulation_steps"


@dataclass(frozen=True, slots=True)
class Step:
    """A move, and the settings by which the file makes it."""

    move: Move
    settings: dict[str, Any]
    """Keys of the file, and what they become."""


@dataclass(slots=True)
class File:
    """A file, and what estimates say of it with some of its settings changed."""

    text: str
    given: str | None
    model: str | None
    around: Surroundings
    facts: Framework
    whose: str
    roomy: bool = False
    """Whether only what fits with all that cached blocks and the context may take is said to fit."""
    known: dict[tuple[str, bool], Judged | None] = field(default_factory=dict)
    jobs: dict[str, Found | None] = field(default_factory=dict)

    def judged(self, text: str, reserves: bool = True) -> Judged | None:
        """What a text's job takes; None where it cannot be read or is not modelled. `reserves` False: sooner, and no more."""
        if (text, reserves) not in self.known:
            try:
                if text not in self.jobs:
                    self.jobs[text] = None
                    self.jobs[text] = read(text, self.given, model=self.model, around=self.around)
                found = self.jobs[text]
                self.known[text, reserves] = judged(found.job, self.around.allow_files, reserves) if found else None
            except WillItFitError:
                self.known[text, reserves] = None
        return self.known[text, reserves]

    def fits(self, text: str | None) -> bool:
        """Whether a text's job fits. What does not fit without the allocator's blocks does not with them."""
        return text is not None and all(
            (found := self.judged(text, reserves)) is not None
            and bool(found.verdict.fits)
            and not (self.roomy and found.verdict.verdict == "tight")
            for reserves in (False, True)
        )

    def tight(self, steps: Sequence[Step]) -> bool:
        """Whether the file fits tightly with steps taken."""
        found = self.judged(self.edited(steps) or self.text)
        return found is not None and found.verdict.verdict == "tight"

    def opened(self, text: str) -> SettingsText | CommandText:
        """A text of this file in which settings can be changed."""
        return opened(text, self.whose, self.facts, self.given)

    def edited(self, steps: Sequence[Step]) -> str | None:
        """The text with steps taken; None where one cannot be."""
        text: str | None = self.text
        for step in steps:
            for key, value in step.settings.items():
                if text is None:
                    return None
                if value is False and self.opened(text).place(key).value in (None, False, "false"):
                    continue
                text = self.opened(text).changed(key, value)
        return text

    @property
    def ours(self) -> bool:
        """Whether it is a job, whose keys are its fields."""
        return self.whose == "willitfit"

    def key(self, field: str) -> str | None:
        """The key of a number."""
        known = field if self.ours else self.facts.edits.get(field)
        return known if isinstance(known, str) else None

    def values(self, move: Move) -> Mapping[str, Mapping[str, Any]]:
        """The settings by which the file says each of a move's values."""
        if self.ours:
            return {value: {move.field: True if value == "true" else value} for value in move.values}
        known = self.facts.edits.get(move.field)
        if not isinstance(known, Mapping):
            return {}
        sharded = any(self.says(key) for key in ("fsdp", "fsdp_config"))
        return {value: settings for value, settings in known.items() if not (sharded and "deepspeed" in settings)}

    def says(self, key: str) -> Any:
        """What the file says of a key, or the framework does without a word."""
        value = self.opened(self.text).place(key).value
        default = self.facts.defaults.get(key)
        return value if value is not None else default.value if default else None

    def total(self, text: str | None, reserves: bool = False) -> int:
        """Bytes that a text's job needs of a GPU; 0 where it is refused."""
        found = self.judged(text, reserves) if text is not None else None
        return found.memory.total_bytes if found else 0

    def seconds(self, text: str) -> float | None:
        """Seconds of a token in training; None where they are not known."""
        found = self.jobs.get(text)
        try:
            time = time_of(found.job, self.around.allow_files) if found and found.job.get("task") != "serve" else None
        except WillItFitError:
            return None
        return 1 / time.tokens_per_second if time else None


def search_fixes(search: File, now: Judged) -> Iterator[list[Step]]:
    """Fixes, the smallest first; where all of them are tight, the smallest that is not comes last."""
    found = list(_fixes(search, now))
    yield from found
    if found and all(search.tight(steps) for steps in found):
        search.roomy = True
        yield from [steps for steps in list(_fixes(search, now))[:1] if steps not in found]


def _fixes(search: File, now: Judged) -> Iterator[list[Step]]:
    """Fixes, the smallest first: what computes the same in one change, or in as few as do it together; then other single changes,
    or as few of all together."""
    ladders = {move: steps for move in moves(now.job) if (steps := steps_of(search, move, now))}
    singles: list[Step] = []
    helpful: list[Step] = []
    for steps in ladders.values():
        if (step := _first(search, [], steps)) is not None:
            singles.append(step)
        else:
            helpful += [one for one in reversed(steps) if _less(search, [one])][:1]
    singles.sort(key=lambda one: (not one.move.same_result, _cost(search, [one])))
    found = [[one] for one in singles]
    if not any(one.move.same_result for one in singles):
        same = [one for one in helpful if one.move.same_result]
        on_gpu = [one for one in same if not one.move.field.startswith("offload.")]
        several = [steps for steps in (_fewest(search, on_gpu, ladders), _fewest(search, same, ladders)) if steps]
        if not several and not singles:
            several = [steps for steps in [_fewest(search, helpful, ladders)] if steps]
        found = sorted(several[:1] if several[1:] == several[:1] else several, key=lambda one: _cost(search, one)) + found
    yield from found[:MOST]


def _cost(search: File, steps: Sequence[Step]) -> float:
    """What steps cost in time: seconds of a token; nothing where they are not known, so that the order of moves decides."""
    text = search.edited(steps)
    return (search.seconds(text) if text is not None else None) or 0.0


def _fewest(search: File, steps: Sequence[Step], ladders: Mapping[Move, list[Step]]) -> list[Step]:
    """Of steps that each help, as few as do it together, each no larger than it must be; none where all are not enough."""
    pairs = [[one, other] for one, other in combinations(steps, 2) if search.fits(search.edited([one, other]))]
    if pairs:
        same = [pair for pair in pairs if all(one.move.same_result for one in pair)]
        return _smaller(search, min(same or pairs, key=lambda pair: _cost(search, pair)), ladders)
    taken: list[Step] = []
    least = search.total(search.text)
    for step in sorted(steps, key=lambda one: (not one.move.same_result, search.total(search.edited([one])))):
        total = search.total(search.edited([*taken, step]))
        if 0 < total < least:
            taken, least = [*taken, step], total
        if search.fits(search.edited(taken)):
            break
    else:
        return []
    for step in sorted(taken, key=lambda one: one.move.same_result):
        rest = [one for one in taken if one is not step]
        if search.fits(search.edited(rest)):
            taken = rest
    return _smaller(search, taken, ladders)


def _smaller(search: File, steps: list[Step], ladders: Mapping[Move, list[Step]]) -> list[Step]:
    """The same changes, each number no further from the file's than it must be; what changes the result is relaxed first."""
    for step in sorted(steps, key=lambda one: one.move.same_result):
        others = [one for one in steps if one is not step]
        nearer = _first(search, others, ladders[step.move])
        steps = [nearer if one is step and nearer is not None else one for one in steps]
    return steps


def _first(search: File, taken: list[Step], steps: list[Step]) -> Step | None:
    """The first of a move's steps with which it fits; the values of a number take less and less, so that bisection finds it."""
    if not steps:
        return None
    if steps[0].move.numbers not in ("tokens", "layers"):
        return next((one for one in steps if search.fits(search.edited([*taken, one]))), None)
    if not search.fits(search.edited([*taken, steps[-1]])):
        return None
    return steps[bisect_left(steps, True, key=lambda one: search.fits(search.edited([*taken, one])))]


def _less(search: File, steps: Sequence[Step]) -> bool:
    total = search.total(search.edited(steps))
    return 0 < total <= search.total(search.text) * (1 - WORTH)


def steps_of(search: File, move: Move, now: Judged) -> list[Step]:
    """How a file makes a move, the smallest step first."""
    if not move.numbers:
        known = search.values(move)
        return [Step(move, dict(known[value])) for value in move.values if value in known]
    key = search.key(move.field)
    if key is None:
        return []
    value = search.says(key)
    if value is None and (key in search.facts.defaults or search.ours):
        value = field_of(now.job.model_dump(mode="json"), move.field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 31:
        return []
    hardware = search.around.hardware or now.job.hardware
    found = [Step(move, {key: one}) for one in numbers(move.numbers, value, hardware.gpus * hardware.nodes)]
    return [_made_up(search, one, key, int(value)) for one in found] if move.numbers == "rows" else found


def _made_up(search: File, step: Step, key: str, rows: int) -> Step:
    """Fewer sequences at a time, with as many more steps between two of the optimizer, where the file says how many those are."""
    steps_key = search.key(ACCUMULATION)
    if steps_key is None:
        return step
    steps = search.says(steps_key) or 1
    if isinstance(steps, bool) or not isinstance(steps, int):
        return step
    return replace(step, settings={**step.settings, steps_key: steps * (rows // step.settings[key])})
