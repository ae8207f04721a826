"""A time as it is answered: from seconds by what they go to, and the work done in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from estimator.answer import Time, TimePart


class Work(NamedTuple):
    """What a step does: tokens on all `gpus`, FLOPs of one of them, how many of these it `repeated`, and the peak in FLOP/s."""

    tokens: float
    gpus: int
    flops: float
    repeated: float
    peak: float


def answered(parts: dict[str, float], bounds: tuple[float, float], work: Work, reason: str) -> Time:
    """Seconds by what they go to, and the lowest and highest that they are thought to sum to, for a `reason`."""
    seconds = sum(parts.values())
    largest = sorted(parts.items(), key=lambda item: -item[1])
    rate = work.flops / seconds
    return Time(
        step_seconds=seconds,
        tokens_per_second=work.tokens / seconds,
        tokens_per_second_per_gpu=work.tokens / seconds / work.gpus,
        flops_per_step=round(work.flops),
        tflops_per_gpu=rate / 1e12,
        mfu=(work.flops - work.repeated) / seconds / work.peak,
        hfu=rate / work.peak,
        bottleneck=largest[0][0],
        parts=[TimePart(name=name, seconds=part, share=part / seconds) for name, part in largest if part],
        range_seconds=bounds,
        range_reason=reason,
    )


def average_time(times: Sequence[tuple[float, Time | None]]) -> Time | None:
    """The time of an average step, given each kind's share of the steps; None if that of one kind is not known."""
    known = [(share, time) for share, time in times if time is not None]
    if len(known) < len(times) or len(known) == 1:
        return known[0][1] if len(known) == len(times) else None
    parts: dict[str, float] = {}
    for share, time in known:
        for part in time.parts:
            parts[part.name] = parts.get(part.name, 0.0) + share * part.seconds
    low, high = (sum(share * time.range_seconds[i] for share, time in known) for i in (0, 1))
    first = known[0][1]
    tokens = sum(share * time.step_seconds * time.tokens_per_second for share, time in known)
    done = sum(share * time.flops_per_step for share, time in known)
    peak = first.tflops_per_gpu * 1e12 / first.hfu
    useful = sum(share * time.mfu * time.step_seconds * peak for share, time in known)
    gpus = round(first.tokens_per_second / first.tokens_per_second_per_gpu)
    return answered(parts, (low, high), Work(tokens, gpus, done, done - useful, peak), first.range_reason)
