"""Time where no kernels were measured: a stated share of an accelerator's peak, or of its bandwidth."""

from __future__ import annotations

from estimator.answer import Time
from estimator.hardware.accelerator import Accelerator
from estimator.tape.replay import flops
from estimator.tape.tape import Tape
from estimator.timing.step import efficiencies
from estimator.timing.times import Work, answered

PEAK = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "tf32": "tf32"}
ARITHMETIC, READING = "arithmetic at a stated share of peak", "reading weights and cache"


def assumed_time(tape: Tape, card: Accelerator, compute: str, micro_steps: int, tokens: float, gpus: int) -> Time | None:
    """Time of one optimizer step of so many tokens on all GPUs; None if the card's peak in `compute` is not known.

    Products in fp8 run at the peak of fp8 where the card has one.
    """
    peak = card.peak.get(PEAK[compute])
    if peak is None:
        return None
    forward, backward = flops(tape, "forward"), flops(tape, "backward")
    done = (forward.total + backward.total) * micro_steps
    fp8, narrow = card.peak.get("fp8", peak), (forward.fp8 + backward.fp8) * micro_steps
    share = efficiencies()["training"]
    seconds = ((done - narrow) / peak.value + narrow / fp8.value) / (1e12 * share.value)
    bounds = seconds * share.value / share.high, seconds * share.value / share.low
    work = Work(tokens, gpus, done, backward.repeated * micro_steps, peak.value * 1e12)
    return answered(
        {ARITHMETIC: seconds}, bounds, work, "no kernel was measured on a card like this: shares of other cards' runs"
    )


def decode_time(resident_bytes: int, sequences: int, gpus: int, card: Accelerator) -> Time:
    """Time of one decoding step: each GPU reads all its weights and its cache once, at a stated share of the bandwidth."""
    share = efficiencies()["decode_bandwidth"]
    seconds = resident_bytes / (card.memory_bandwidth.value * 1e9 * share.value)
    bounds = seconds * share.value / share.high, seconds * share.value / share.low
    return answered({READING: seconds}, bounds, Work(sequences, gpus, 0, 0, 1), "shares of the bandwidth that kernels reach")
