"""Time where no kernels were measured: a stated share of an accelerator's peak, or of its bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.answer import Time
from estimator.contract.job import Job
from estimator.families.spec import DecoderSpec
from estimator.hardware.accelerator import Accelerator
from estimator.serving.engine import compute_type
from estimator.tape.float8 import SCALED_PRODUCT
from estimator.tape.kernels import flops, kernels
from estimator.tape.tape import Tape, Work
from estimator.timing.curves import DTYPES, peak
from estimator.timing.engine import REDUCED, batch, exchanged
from estimator.timing.exchange import Wires
from estimator.timing.passes import Case
from estimator.timing.step import Cases, efficiencies
from estimator.timing.times import Done, answered

ASSUMED = (
    "no kernel was measured on a card like this: arithmetic at the least or the largest share of the peak that other cards' runs "
    "reach; exchanges at the links' rate, hidden as far as they can be, or not at all"
)
"""Why a step's time has a range."""
ARITHMETIC, READING = "arithmetic at a stated share of peak", "reading weights and cache"


def _at_share(name: str, ideal: float) -> tuple[float, tuple[float, float]]:
    """Seconds, the fewest and the most, of what takes `ideal` seconds at the whole of a rate, at the share of it of that name."""
    least, expected, most = efficiencies()[name].taken(ideal)
    return expected, (least, most)


@dataclass(frozen=True, slots=True)
class AssumedClock:
    """Times kernels by their arithmetic alone: at the expected share of the `peak`, or, of products in fp8, of that of `fp8`, in
    FLOP/s. All else of a step is in that share."""

    card: Accelerator
    peak: float
    fp8: float

    def kernel(self, work: Work) -> tuple[str, float]:
        """Its seconds are none unless it multiplies."""
        rate = self.fp8 if work.operation == SCALED_PRODUCT else self.peak
        return ARITHMETIC, efficiencies()["training"].taken(work.flops / rate)[1]


def assumed_clock(card: Accelerator, compute: str) -> AssumedClock:
    """The clock of a card that nothing like was measured of; `NotModelled` if its peak in `compute` is not known."""
    known = peak(card, compute)
    return AssumedClock(card, known, peak(card, "fp8") if "fp8" in card.peak else known)


def assumed_cases() -> Cases:
    """Low, expected and high: the share, with exchanges overlapped where they can be, or not."""
    least, expected, most = efficiencies()["training"].taken(1.0)

    def case(seconds: float, taken: float | None, host: int) -> Case:
        return Case({ARITHMETIC: seconds / expected}, 1.0, 0.0, 0.0, taken, host)

    return case(least, 0.0, 0), case(expected, 0.0, 1), case(most, None, 2)


def assumed_pass(job: Job, spec: DecoderSpec, tape: Tape, card: Accelerator, wires: Wires, phase: str) -> Time | None:
    """Time of a served model's pass: a prompt's arithmetic at a stated share of the peak, or what a decoding step reads and
    writes at one of the bandwidth, and what ranks exchange besides. A card without the type computes in float32. None if that
    peak is not known, either."""
    compute = compute_type(job.serving)
    known = card.peak.get(DTYPES[compute.name][0]) or card.peak.get("fp32")
    if known is None:
        return None
    done, rate = flops(tape, phase).total, known.value * 1e12
    _, tokens = batch(job, phase)
    among = exchanged(job, spec, wires, phase, compute.itemsize)
    if phase == "prefill":
        name = ARITHMETIC
        seconds, bounds = _at_share("prefill", done / rate)
    else:
        name = READING
        moved = sum(work.nbytes * times for work, times in kernels(tape, phase))
        seconds, bounds = _at_share("decode_bandwidth", moved / (card.memory_bandwidth.value * 1e9))
    work = Done(tokens * wires.place.data, wires.place.gpus, done, 0, rate)
    ends = bounds[0] + among, bounds[1] + among
    return answered(
        {name: seconds, REDUCED: among}, ends, work, "no kernel was measured on a card like this: shares that others reach"
    )


def decode_time(resident_bytes: int, sequences: int, gpus: int, card: Accelerator) -> Time:
    """Time of one decoding step: each GPU reads all its weights and its cache once, at a stated share of the bandwidth."""
    seconds, bounds = _at_share("decode_bandwidth", resident_bytes / (card.memory_bandwidth.value * 1e9))
    return answered({READING: seconds}, bounds, Done(sequences, gpus, 0, 0, 1), "shares of the bandwidth that kernels reach")
