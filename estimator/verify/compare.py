"""What the tape predicts against what torch counts: by phase, and the first operations that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import capacity
from estimator.parallel.topology import topology
from estimator.pipeline.estimation import estimate
from estimator.simulation.trace import trace
from estimator.specs.resolve import resolve
from estimator.tape.lifetimes import undisturbed
from estimator.tape.tape import Tape
from estimator.verify.step import Log, fake_step

CONTEXT = 2
"""Events before a difference that are shown with it."""
WINDOW = 400
"""Events of each run among which its end is looked for."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the two runs part: the events of each from a little before on, with the live bytes before the first of them."""

    phase: str
    predicted_bytes: int
    counted_bytes: int
    predicted: Log
    counted: Log


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tape's bytes and torch's at the moments that an answer names, and the first differences, if there are any."""

    job: Job
    predicted: dict[str, int]
    counted: dict[str, int]
    differences: list[Difference]

    @property
    def error(self) -> float:
        """The largest relative error."""
        return max(abs(self.predicted[name] - counted) / max(1, counted) for name, counted in self.counted.items())


def verify(job: Job | dict[str, object] | str, most: int = 10) -> Comparison:
    """Simulate a training job on the tape, and run its real model on fake tensors. `most`: differences to be found.

    Raises `NotModelled` for a job that torch cannot run without a GPU (`estimator.verify.playable`), and what `estimate` raises.
    """
    answer = estimate(job)
    filled = Job.model_validate(answer.job)
    spec = resolve(filled.model).spec
    predicted = {
        "resident": answer.memory.resident_bytes,
        "forward_end": answer.memory.forward_end_bytes,
        **answer.memory.phases,
    }
    if answer.host is not None and answer.host.rank_peak_bytes:
        predicted |= {"host_resident": answer.host.rank_resident_bytes, "host": answer.host.rank_peak_bytes}
    logs: dict[str, Log] = {}
    counted = fake_step(filled, spec, logs)
    differences: list[Difference] = []
    if predicted != counted:
        differences = list(_differences(_unrolled(filled, spec), logs, (predicted["resident"], counted["resident"])))
    return Comparison(filled, predicted, counted, differences[:most])


def _unrolled(job: Job, spec: ModelSpec) -> dict[str, Log]:
    """The tape's events by phase, every layer by itself."""
    card = gpu(job, capacity(job.hardware))
    tape = undisturbed(lambda: trace(job, spec, topology(job, spec), card, unrolled=True)).tape
    logs: dict[str, Log] = {}
    stop = len(tape.events) if tape.stop is None else tape.stop
    for phase, end in zip(tape.phases, [*(p.start for p in tape.phases[1:]), stop], strict=True):
        logs.setdefault(phase.name, []).extend(_event(tape, e) for e in tape.events[phase.start : end])
    return logs


def _event(tape: Tape, event: int) -> tuple[int, str]:
    size = tape.sizes[abs(event)]
    return (size if event > 0 else -size), tape.operations[abs(event)]


def _differences(predicted: dict[str, Log], counted: dict[str, Log], live: tuple[int, int]) -> Iterator[Difference]:
    here, there = live
    for phase in counted:
        ours, theirs = ([e for e in log[phase] if e[0]] for log in (predicted, counted))
        for a, b, c, d in _unequal([e[0] for e in ours], [e[0] for e in theirs]):
            before = max(0, a - CONTEXT), max(0, c - CONTEXT)
            yield Difference(
                phase,
                here + _sum(ours[: before[0]]),
                there + _sum(theirs[: before[1]]),
                ours[before[0] : b],
                theirs[before[1] : d],
            )
        here, there = here + _sum(ours), there + _sum(theirs)


def _unequal(ours: list[int], theirs: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """Where two sequences differ, one place after the other, as the bounds of each: a to b, and c to d."""
    a = c = 0
    while a < len(ours) or c < len(theirs):
        if ours[a : a + 1] == theirs[c : c + 1]:
            a, c = a + 1, c + 1
            continue
        matcher = SequenceMatcher(None, ours[a : a + WINDOW], theirs[c : c + WINDOW], autojunk=False)
        _, _, more, _, less = matcher.get_opcodes()[0]
        yield a, a + more, c, c + less
        a, c = a + more, c + less


def _sum(log: Sequence[tuple[int, str]]) -> int:
    return sum(change for change, _ in log)


def comparison_text(found: Comparison) -> str:
    """The comparison as a terminal shows it."""
    lines = [f"{'':16}{'predicted':>18}{'counted':>18}{'difference':>14}"]
    for name, counted in found.counted.items():
        predicted = found.predicted[name]
        off = "equal" if predicted == counted else f"{predicted - counted:+,}"
        share = "" if predicted == counted or not counted else f"  {predicted / counted - 1:+.3%}"
        lines.append(f"{name.replace('_', ' '):16}{predicted:>18,}{counted:>18,}{off:>14}{share}")
    for difference in found.differences:
        lines.append(
            f"\n{difference.phase}, at {difference.predicted_bytes:,} predicted and {difference.counted_bytes:,} counted:"
        )
        for name in ("predicted", "counted"):
            events = getattr(difference, name)
            lines.append(f"  {name:10}" + "  ".join(f"{operation} {change:+,}" for change, operation in events[:12]))
    return "\n".join(lines) + "\n"
