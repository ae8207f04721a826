"""A first estimate of time: FLOPs read off the tape, over a stated share of the accelerator's peak.

Communication, memory traffic and launch overheads are inside that share, not modelled one by one.
"""

from __future__ import annotations

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
    """Time of one optimizer step: `tokens` per GPU and step, on `gpus` of a card; None if its peak in `compute` is not known."""
    peak = card.peak.get(PEAK[compute])
    if peak is None:
        return None
    forward, backward = flops(tape, "forward"), flops(tape, "backward")
    done = (forward.total + backward.total) * micro_steps
    useful = done - backward.repeated * micro_steps
    share = efficiencies()["training"]
    seconds = done / (peak.value * 1e12 * share.value)
    return Time(
        step_seconds=seconds,
        tokens_per_second=tokens * gpus / seconds,
        tokens_per_second_per_gpu=tokens / seconds,
        flops_per_step=done,
        mfu=useful / (seconds * peak.value * 1e12),
        bottleneck="compute (assumed)",
        range_seconds=(seconds * share.value / share.high, seconds * share.value / share.low),
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
