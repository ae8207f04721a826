"""Time where no kernels were measured: a stated share of an accelerator's peak, or of its bandwidth."""

from __future__ import annotations

from estimator.answer import Time
from estimator.hardware.accelerator import Accelerator
from estimator.job import Job
from estimator.parallel.topology import Topology
from estimator.serving.plan import compute_type, prompts
from estimator.tape.kernels import flops, kernels
from estimator.tape.tape import Tape
from estimator.timing.curves import DTYPES
from estimator.timing.step import efficiencies
from estimator.timing.times import Work, answered

ARITHMETIC, READING = "arithmetic at a stated share of peak", "reading weights and cache"


def _at_share(name: str, ideal: float) -> tuple[float, tuple[float, float]]:
    """Seconds, the fewest and the most, of what takes `ideal` seconds at the whole of a rate, at the share of it of that name."""
    least, expected, most = efficiencies()[name].taken(ideal)
    return expected, (least, most)


def assumed_time(tape: Tape, card: Accelerator, compute: str, micro_steps: int, tokens: float, gpus: int) -> Time | None:
    """Time of one optimizer step of so many tokens on all GPUs; None if the card's peak in `compute` is not known.

    Products in fp8 run at the peak of fp8 where the card has one.
    """
    peak = card.peak.get(DTYPES[compute][0])
    if peak is None:
        return None
    forward, backward = flops(tape, "forward"), flops(tape, "backward")
    done = (forward.total + backward.total) * micro_steps
    fp8, narrow = card.peak.get("fp8", peak), (forward.fp8 + backward.fp8) * micro_steps
    seconds, bounds = _at_share("training", ((done - narrow) / peak.value + narrow / fp8.value) / 1e12)
    work = Work(tokens, gpus, done, backward.repeated * micro_steps, peak.value * 1e12)
    return answered(
        {ARITHMETIC: seconds}, bounds, work, "no kernel was measured on a card like this: shares of other cards' runs"
    )


def assumed_pass(job: Job, tape: Tape, card: Accelerator, place: Topology, phase: str) -> Time | None:
    """Time of a served model's pass: a prompt's arithmetic at a stated share of the peak, or what a decoding step reads and
    writes at one of the bandwidth. A card without the type computes in float32. None if that peak is not known, either."""
    serving = job.serving
    known = card.peak.get(DTYPES[compute_type(serving).name][0]) or card.peak.get("fp32")
    if known is None:
        return None
    done, peak = flops(tape, phase).total, known.value * 1e12
    if phase == "prefill":
        name, tokens = ARITHMETIC, prompts(serving) * serving.lengths[0]
        seconds, bounds = _at_share("prefill", done / peak)
    else:
        name, tokens = READING, serving.concurrency
        moved = sum(work.nbytes * times for work, times in kernels(tape, phase))
        seconds, bounds = _at_share("decode_bandwidth", moved / (card.memory_bandwidth.value * 1e9))
    work = Work(tokens * place.data, place.gpus, done, 0, peak)
    left = ", without what GPUs exchange" if place.tensor > 1 else ""
    return answered({name: seconds}, bounds, work, f"no kernel was measured on a card like this: shares that others reach{left}")


def decode_time(resident_bytes: int, sequences: int, gpus: int, card: Accelerator) -> Time:
    """Time of one decoding step: each GPU reads all its weights and its cache once, at a stated share of the bandwidth."""
    seconds, bounds = _at_share("decode_bandwidth", resident_bytes / (card.memory_bandwidth.value * 1e9))
    return answered({READING: seconds}, bounds, Work(sequences, gpus, 0, 0, 1), "shares of the bandwidth that kernels reach")
