"""A time as it is answered: from seconds by what they go to, and the work done in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from estimator.contract.answer import Time, TimePart


class Done(NamedTuple):
    """What a step does: tokens on all `gpus`, FLOPs of one of them, how many of these it `repeated`, and the peak in FLOP/s."""

    tokens: float
    gpus: int
    flops: float
    repeated: float
    peak: float


RATES = ("tokens_per_second", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu", "hfu")
"""Fields of `Time` that are rates, or shares of the peak: they fall as a step gets longer."""


def answered(parts: dict[str, float], bounds: tuple[float, float], work: Done, reason: str) -> Time:
    """Seconds by what they go to, and the lowest and highest that they are thought to sum to, for a `reason`."""
    seconds = sum(parts.values())
    largest = _largest_first(parts)
    rate = work.flops / seconds
    return Time(
        step_seconds=seconds,
        tokens_per_second=work.tokens / seconds,
        tokens_per_second_per_gpu=work.tokens / seconds / work.gpus,
        flops_per_step=round(work.flops),
        tflops_per_gpu=rate / 1e12,
        mfu=(work.flops - work.repeated) / seconds / work.peak,
        hfu=rate / work.peak,
        bottleneck=largest[0].name,
        parts=largest,
        range_seconds=bounds,
        range_reason=reason,
    )


def lengthened(time: Time, name: str, seconds: float, bounds: tuple[float, float]) -> Time:
    """A time with a further part, in which no token is learnt from: the step gets longer and the rates fall."""
    longer = time.step_seconds / (time.step_seconds + seconds)
    largest = _largest_first({**{part.name: part.seconds for part in time.parts}, name: seconds})
    return time.model_copy(
        update={
            **{name: longer * getattr(time, name) for name in RATES},
            "step_seconds": time.step_seconds + seconds,
            "bottleneck": largest[0].name,
            "parts": largest,
            "range_seconds": (time.range_seconds[0] + bounds[0], time.range_seconds[1] + bounds[1]),
        }
    )


def over_stages(time: Time, factor: float, batches: int, share: float) -> Time:
    """A pass as a pipeline runs it: so many times as long, `batches` of it at the same time, and of its arithmetic a GPU does a
    `share`."""
    more = {"tokens_per_second": batches, "tokens_per_second_per_gpu": batches}
    return time.model_copy(
        update={
            **{name: getattr(time, name) * more.get(name, share) / factor for name in RATES},
            "flops_per_step": round(time.flops_per_step * share),
            "step_seconds": time.step_seconds * factor,
            "parts": [part.model_copy(update={"seconds": part.seconds * factor}) for part in time.parts],
            "range_seconds": (time.range_seconds[0] * factor, time.range_seconds[1] * factor),
        }
    )


def _largest_first(parts: Mapping[str, float]) -> list[TimePart]:
    seconds = sum(parts.values())
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return [TimePart(name=name, seconds=part, share=part / seconds) for name, part in ordered if part]


def average_time(times: Sequence[tuple[float, Time | None]]) -> Time | None:
    """The time of an average step, given each kind's share of the steps; None if that of one kind is not known."""
    known = [(share, time) for share, time in times if time is not None]
    if len(known) < len(times):
        return None
    if len(known) == 1:
        return known[0][1]
    seconds = sum(share * time.step_seconds for share, time in known)
    parts: defaultdict[str, float] = defaultdict(float)
    for share, time in known:
        for part in time.parts:
            parts[part.name] += share * part.seconds

    def rate(name: str) -> float:
        """What is done in a second, or its share of the peak: of each kind of step for as long as it takes."""
        return sum(share * time.step_seconds * float(getattr(time, name)) for share, time in known) / seconds

    largest = _largest_first(parts)
    return Time(
        step_seconds=seconds,
        flops_per_step=round(sum(share * time.flops_per_step for share, time in known)),
        **{name: rate(name) for name in RATES},
        bottleneck=largest[0].name,
        parts=largest,
        range_seconds=(
            sum(share * time.range_seconds[0] for share, time in known),
            sum(share * time.range_seconds[1] for share, time in known),
        ),
        range_reason=known[0][1].range_reason,
    )
