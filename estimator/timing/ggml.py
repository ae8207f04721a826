"""How long llama.cpp's passes take: kernels one after another, each with the bytes that it moves or the arithmetic that it does.

    step = kernels · each + matrices / rate + other bytes / (share · bandwidth) + hand-overs between GPUs
    pass = kernels · each + max(FLOPs / arithmetic, matrices / (share · bandwidth)) + other bytes / (share · bandwidth)

    rate       = min(share · bandwidth, multiprocessors · what one reads)
    arithmetic = min(share · peak, multiprocessors · what one multiplies)

A multiprocessor has so many loads in flight, and a matrix times one vector asks no more of it; so cards with much bandwidth for
each of them do not reach it. ggml's CUDA and HIP kernels turn the vector into blocks of int8 first (ggml-cuda/mmvq.cu), and for a
prompt make float16 of matrices in blocks (ggml-cuda.cu, `ggml_cuda_op_mul_mat_cublas`), which are written and read again; Metal's
unpack them where they multiply (ggml-metal.metal, `kernel_mul_mm`). GPUs take turns with a token's layers; of a prompt of several
passes they work on as many as the scheduler keeps copies of inputs for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from estimator.contract.answer import Time
from estimator.contract.job import Job
from estimator.facts.fact import MeasuredFact, measured
from estimator.hardware.accelerator import Accelerator
from estimator.serving.llamacpp.passes import Pass
from estimator.timing.engine import WEIGHTS
from estimator.timing.kernels import ATTENTION, MEMORY, PRODUCTS
from estimator.timing.passes import LAUNCHES, Parts
from estimator.timing.times import Done, answered

FILE = Path(__file__).parent / "ggml.yaml"
CONVERTING = ("nvidia", "amd")
"""Vendors whose cards run ggml-cuda's kernels."""
COPIES = 4
"""Passes of a prompt that are under way at once (ggml/src/ggml-backend.cpp, `GGML_SCHED_MAX_COPIES`)."""
UNPACKED = 2
"""How often a matrix that was made of blocks is moved: written and read."""
BETWEEN = "between GPUs"


@dataclass(frozen=True, slots=True)
class Rates:
    """What a card's backend reaches. `kernel_us`: of each kernel; `share`: of the bandwidth; `products`: of the peak; `core_gb`
    that a multiprocessor reads in a second, `core_tflops` that it multiplies; `hop_ms`: from a GPU to the next."""

    kernel_us: float
    share: float
    products: float
    core_gb: float = float("inf")
    core_tflops: float = float("inf")
    hop_ms: float = 0.0


def facts() -> dict[str, MeasuredFact]:
    """Every measured constant, by vendor and name."""
    return measured(FILE)


def rates(card: Accelerator) -> Rates | None:
    """Those of a card; None where no backend of its vendor was measured."""
    known = {name: facts().get(f"{card.vendor}.{name}") for name in Rates.__slots__}
    found = {name: fact.value for name, fact in known.items() if fact}
    return Rates(**found) if found else None


def step_parts(rates: Rates, card: Accelerator, step: Pass, gpus: int) -> Parts:
    """Seconds of a decoding step, by what they go to."""
    bandwidth = rates.share * card.memory_bandwidth.value * 1e9
    reading = min(bandwidth, _cores(card) * rates.core_gb * 1e9)
    return {
        WEIGHTS: (step.whole_bytes + step.block_bytes) / reading,
        MEMORY: step.moved_bytes / bandwidth,
        LAUNCHES: _kernels(card, step) * rates.kernel_us * 1e-6,
        BETWEEN: (gpus - 1) * rates.hop_ms * 1e-3,
    }


def prompt_parts(rates: Rates, card: Accelerator, reading: Pass, many: float, gpus: int) -> Parts:
    """Seconds of a prompt that is read in so many passes, by what they go to."""
    bandwidth = rates.share * card.memory_bandwidth.value * 1e9
    arithmetic = min(rates.products * _peak(card), _cores(card) * rates.core_tflops * 1e12)
    matrices = (reading.whole_bytes + reading.block_bytes) / bandwidth
    unpacked = UNPACKED * reading.unpacked_bytes if card.vendor in CONVERTING else 0.0
    one = {
        PRODUCTS: max(reading.flops / arithmetic, matrices),
        ATTENTION: reading.scores_flops / arithmetic,
        MEMORY: (unpacked + reading.moved_bytes) / bandwidth,
        LAUNCHES: _kernels(card, reading) * rates.kernel_us * 1e-6,
    }
    turns = 1 + (many - 1) / min(gpus, COPIES)
    return {name: turns * seconds for name, seconds in one.items()}


def timed(job: Job, card: Accelerator, found: tuple[Pass, float, Pass]) -> tuple[Time, Time] | None:
    """The times of a prompt and of a decoding step; None where no backend of the card's vendor was measured."""
    reached = rates(card)
    if reached is None:
        return None
    reading, many, step = found
    gpus, sequences = job.hardware.gpus, job.serving.concurrency
    prompt = prompt_parts(reached, card, reading, many, gpus)
    token = step_parts(reached, card, step, gpus)
    flops = many * (reading.flops + reading.scores_flops), step.flops + step.scores_flops
    return (
        _answered(card, "prefill", prompt, Done(job.serving.lengths[0], gpus, flops[0], 0, gpus * _peak(card))),
        _answered(card, "decode", token, Done(sequences, gpus, flops[1], 0, gpus * _peak(card))),
    )


def _answered(card: Accelerator, what: str, parts: Parts, done: Done) -> Time:
    spread = facts()[f"{card.vendor}.{what}"]
    seconds = sum(parts.values())
    reason = "llama.cpp's kernels as fast as in the fastest tenth of published runs on such cards, or as slow as in the slowest"
    return answered(parts, (seconds * spread.low, seconds * spread.high), done, reason)


def _kernels(card: Accelerator, one: Pass) -> int:
    return one.kernels + (one.unpacking if card.vendor in CONVERTING else 0)


def _cores(card: Accelerator) -> float:
    """Multiprocessors, as many as it takes where they are not known."""
    return card.multiprocessors.value if card.multiprocessors else float("inf")


def _peak(card: Accelerator) -> float:
    """FLOP/s of products in float16 that are summed in float16, as ggml's are: half of those in int8 where these are known, since
    GeForce's peaks of float16 are of sums in float32."""
    known = {name: fact.value for name, fact in card.peak.items()}
    return 1e12 * max(known.get("int8", 0) / 2, known.get("fp16", 0), known.get("fp32", 0))
