"""Time where no kernels were measured: a stated share of an accelerator's peak, or of its bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from estimator.contract.answer import Time
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.hardware.accelerator import Accelerator
from estimator.serving.engine import compute_type
from estimator.serving.engines import engine_of
from estimator.tape.float8 import SCALED_PRODUCT
from estimator.tape.kernels import flops, kernels
from estimator.tape.tape import EXPERTS, Tape, Work
from estimator.timing.curves import DTYPES, peak
from estimator.timing.engine import JOINED, REDUCED, SCHEDULING, batch, exchanged, joined, launches, steps_of
from estimator.timing.exchange import Wires
from estimator.timing.kernels import KERNELS
from estimator.timing.passes import LAUNCHES, Case
from estimator.timing.step import Cases, efficiencies
from estimator.timing.times import Done, answered

ASSUMED = (
    "no kernel was measured on a card like this: arithmetic at the least or the largest share of the peak that other cards' runs "
    "reach; exchanges at the links' rate, hidden as far as they can be, or not at all"
)
"""Why a step's time has a range."""
ARITHMETIC, READING = "arithmetic at a stated share of peak", "reading weights and cache"
STARTING = "starting kernels"
"""What each kernel takes beside its bytes and its arithmetic."""


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


def assumed_pass(job: Job, spec: ModelSpec, tape: Tape, card: Accelerator, wires: Wires, phase: str) -> Time | None:
    """Time of a served model's pass: its arithmetic at a stated share of the peak, or what it reads and writes at one of the
    bandwidth, whichever takes longer; what each kernel takes to begin with, as on other cards; what ranks exchange; and what a
    server's host takes. A card without the type computes in float32. None if that peak is not known, either."""
    compute = compute_type(job.serving)
    known = card.peak.get(DTYPES[compute.name][0]) or card.peak.get("fp32")
    if known is None:
        return None
    done, rate = flops(tape, phase).total, known.value * 1e12
    _, tokens = batch(job, phase)
    among, server = exchanged(job, spec, wires, phase, compute.itemsize), engine_of(job).continuous
    works = joined(tape, phase) if server else kernels(tape, phase)
    moved = sum(work.nbytes * times for work, times in works)
    ways = {
        ARITHMETIC: _at_share("prefill", done / rate),
        READING: _at_share("decode_bandwidth", moved / (card.memory_bandwidth.value * 1e9)),
    }
    name = max(ways, key=lambda way: ways[way][0])
    seconds, bounds = ways[name]
    begun, wait, steps = _begun(works), efficiencies()["serving_step"], steps_of(tokens, phase) if server else 0
    launch, many = efficiencies()["launch_generating"], sum(times for _, times in works) if server and launches(job, phase) else 0
    ends = [
        max(bound + among + start, many * each * 1e-6) + steps * 1e-3 * host
        for bound, start, host, each in zip(
            bounds, (begun[0], begun[2]), (wait.low, wait.high), (launch.low, launch.high), strict=True
        )
    ]
    parts = {name: seconds, STARTING: begun[1], REDUCED: among}
    parts[LAUNCHES] = max(0.0, many * launch.value * 1e-6 - sum(parts.values()))
    parts[SCHEDULING] = steps * 1e-3 * wait.value
    reason = "no kernel was measured on a card like this: shares that others reach"
    work = Done(tokens * wires.place.data, wires.place.gpus, done, 0, rate)
    return answered({part: took for part, took in parts.items() if took}, (ends[0], ends[1]), work, reason)


def _begun(works: Iterable[tuple[Work, int]]) -> tuple[float, float, float]:
    """Seconds that kernels take to begin with: at least, expected and at most."""
    found = [0.0, 0.0, 0.0]
    for work, times in works:
        if work.operation == JOINED:
            continue
        kind = "experts" if work.operation.endswith(EXPERTS) else "attention" if work.operation in KERNELS else ""
        fact = efficiencies()[f"start_{kind or ('product' if work.flops else 'stream')}"]
        for at, each in enumerate((fact.low, fact.value, fact.high)):
            found[at] += 1e-6 * each * times
    return found[0], found[1], found[2]


def decode_time(resident_bytes: int, sequences: int, gpus: int, card: Accelerator) -> Time:
    """Time of one decoding step: each GPU reads all its weights and its cache once, at a stated share of the bandwidth."""
    seconds, bounds = _at_share("decode_bandwidth", resident_bytes / (card.memory_bandwidth.value * 1e9))
    return answered({READING: seconds}, bounds, Done(sequences, gpus, 0, 0, 1), "shares of the bandwidth that kernels reach")
