"""A first estimate of time: FLOPs read off the tape, over a stated share of the accelerator's peak.

Communication, memory traffic and launch overheads are inside that share, not modelled one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from estimator import catalogue
from estimator.answer import Time
from estimator.facts import MeasuredFact
from estimator.hardware.accelerator import Accelerator
from estimator.tape.replay import flops
from estimator.tape.tape import Tape

FILE = Path(__file__).parent / "efficiency.yaml"
PEAK = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "tf32": "tf32"}


@cache
def efficiencies() -> dict[str, MeasuredFact]:
    """The stated shares, by name."""
    return {name: MeasuredFact.model_validate(fact) for name, fact in catalogue.load_yaml(FILE).items()}


def training_time(tape: Tape, card: Accelerator, compute: str, micro_steps: int, tokens: int, gpus: int) -> Time | None:
    """Time of one optimizer step: `tokens` per GPU and step, on `gpus` of a card; None if its peak in `compute` is not known.

    Products in fp8 run at the peak of fp8 where the card has one.
    """
    peak = card.peak.get(PEAK[compute])
    if peak is None:
        return None
    forward, backward = flops(tape, "forward"), flops(tape, "backward")
    done = (forward.total + backward.total) * micro_steps
    useful = done - backward.repeated * micro_steps
    fp8, narrow = card.peak.get("fp8", peak), (forward.fp8 + backward.fp8) * micro_steps
    share = efficiencies()["training"]
    seconds = ((done - narrow) / peak.value + narrow / fp8.value) / (1e12 * share.value)
    return Time(
        step_seconds=seconds,
        tokens_per_second=tokens * gpus / seconds,
        tokens_per_second_per_gpu=tokens / seconds,
        flops_per_step=done,
        mfu=useful / (seconds * peak.value * 1e12),
        bottleneck="compute (assumed)",
        range_seconds=(seconds * share.value / share.high, seconds * share.value / share.low),
    )


def average_time(times: Sequence[tuple[float, Time | None]]) -> Time | None:
    """The time of an average step, given each kind's share of the steps; None if that of one kind is not known."""
    known = [(share, time) for share, time in times if time is not None]
    if len(known) < len(times) or len(known) == 1:
        return known[0][1] if len(known) == len(times) else None
    seconds = sum(share * time.step_seconds for share, time in known)
    low, high = (sum(share * time.range_seconds[i] for share, time in known) for i in (0, 1))
    tokens = sum(share * time.step_seconds * time.tokens_per_second for share, time in known)
    each = sum(share * time.step_seconds * time.tokens_per_second_per_gpu for share, time in known)
    return Time(
        step_seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_second_per_gpu=each / seconds,
        flops_per_step=round(sum(share * time.flops_per_step for share, time in known)),
        mfu=sum(share * time.step_seconds * time.mfu for share, time in known) / seconds,
        bottleneck=known[0][1].bottleneck,
        range_seconds=(low, high),
    )


def decode_time(resident_bytes: int, sequences: int, card: Accelerator) -> Time:
    """Time of one decoding step: all weights and the cache are read once, at a stated share of the memory's bandwidth."""
    share = efficiencies()["decode_bandwidth"]
    seconds = resident_bytes / (card.memory_bandwidth.value * 1e9 * share.value)
    return Time(
        step_seconds=seconds,
        tokens_per_second=sequences / seconds,
        tokens_per_second_per_gpu=sequences / seconds,
        flops_per_step=0,
        mfu=0.0,
        bottleneck="memory bandwidth (assumed)",
        range_seconds=(seconds * share.value / share.high, seconds * share.value / share.low),
    )
