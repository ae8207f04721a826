"""How long llama.cpp's passes take: kernels one after another, each with the bytes that it moves or the arithmetic that it does.

    step = kernels · each + matrices / reading + other bytes / (share · bandwidth) + hand-overs between GPUs
    pass = kernels · each + max(FLOPs / arithmetic, bytes / (share · bandwidth)) of products and of attention
         + unpacked / reading + other bytes / (share · bandwidth)

    reading    = min(share · bandwidth, multiprocessors · what one reads)
    arithmetic = min(share · peak, multiprocessors · what one multiplies)

A multiprocessor has so many loads in flight, and a matrix times one vector asks no more of it; so cards with much bandwidth for
each of them do not reach it. ggml's CUDA and HIP kernels turn the vector into blocks of int8 first (ggml-cuda/mmvq.cu). For a
prompt cuBLAS multiplies in float16 (ggml-cuda.cu, `ggml_cuda_op_mul_mat_cublas`, `ggml_cuda_mul_mat_batched_cublas`): a matrix in
blocks is read and written as float16 before, what is multiplied with it is read in float32 and written in float16, and what comes
out the other way round. So it is with both of attention's products where it is no kernel of its own. Metal's unpack where they
multiply (ggml-metal.metal, `kernel_mul_mm`).

GPUs take turns with a token's layers; of a prompt of several passes they work on as many as the scheduler keeps copies of inputs
for. Passes follow one another as the GPU with most layers is done with them, each longer than the one before; the last goes on
through the other GPUs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from estimator.contract.answer import Time
from estimator.contract.job import Job, Serving
from estimator.facts.fact import MeasuredFact, measured
from estimator.hardware.accelerator import Accelerator
from estimator.serving.llamacpp.devices import layer_devices
from estimator.serving.llamacpp.passes import Pass, Passes
from estimator.timing.engine import WEIGHTS
from estimator.timing.kernels import ATTENTION, MEMORY, PRODUCTS
from estimator.timing.passes import LAUNCHES, Parts
from estimator.timing.times import Done, answered

FILE = Path(__file__).parent / "ggml.yaml"
QUANTIZING = ("nvidia", "amd")
"""Vendors whose cards run ggml-cuda's kernels: of a product with a matrix in blocks one quantizes what is multiplied."""
CONVERTING = "nvidia"
"""Whose prompts went through cuBLAS in float16. Vulkan's kernels unpack where they multiply, and HIP's of 2026 do
(ggml-cuda/mmq.cu, `ggml_cuda_should_use_mmq`)."""
FUSING = "nvidia"
"""Whose numbers are of builds of May 2024, before one kernel ran several nodes (ggml-cuda.cu, `ggml_cuda_try_fuse`); the others'
hold what their builds saved by it."""
COPIES = 4
"""Passes of a prompt that are under way at once (ggml/src/ggml-backend.cpp, `GGML_SCHED_MAX_COPIES`)."""
HALF, CONVERTED = 0.5, 1.5
"""Of numbers in float32: what they take in float16, and what is moved to turn one into the other."""
AROUND = 2
"""Kernels beside a product of cuBLAS: what is multiplied is turned into float16, and what comes out into float32."""
BETWEEN = "between GPUs"


@dataclass(frozen=True, slots=True)
class Rates:
    """What a card's backend reaches. `kernel_us`: of each kernel; `share`: of the bandwidth; `products`: of the peak; `core_gb`
    that a multiprocessor reads in a second, `core_tflops` that it multiplies;
    `split_us`: of each kernel besides, where layers lie on several GPUs and no CUDA graph of all is replayed (ggml-cuda.cu of
    2024: "Also disable for multi-gpu for now")."""

    kernel_us: float
    share: float
    products: float
    core_gb: float = float("inf")
    core_tflops: float = float("inf")
    split_us: float = 0.0


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
        MEMORY: step.other_bytes / bandwidth,
        LAUNCHES: _kernels(card, step) * rates.kernel_us * 1e-6,
        BETWEEN: (gpus > 1) * _kernels(card, step) * rates.split_us * 1e-6,
    }


def prompt_parts(rates: Rates, card: Accelerator, found: Passes, gpus: int, longest: float = 1.0) -> Parts:
    """Seconds of a prompt, by what they go to; `longest`: the share of layers of the GPU that has most."""
    each = max(longest, 1 / COPIES) if gpus > 1 else 1.0
    mean, last = (_reading(rates, card, one) for one in (found.reading, found.last))
    return {name: found.many * each * mean[name] + (1 - each) * last[name] for name in mean}


def _reading(rates: Rates, card: Accelerator, one: Pass) -> Parts:
    """Seconds of a pass over tokens of a prompt on one GPU."""
    bandwidth = rates.share * card.memory_bandwidth.value * 1e9
    arithmetic = min(rates.products * _peak(card), _cores(card) * rates.core_tflops * 1e12)
    converts = card.vendor == CONVERTING
    halved, turned = (HALF, CONVERTED) if converts else (0.0, 1.0)
    matrices = one.whole_bytes + (one.unpacked_bytes if converts else one.block_bytes)
    unpacking = (one.block_bytes + one.unpacked_bytes) / min(bandwidth, _cores(card) * rates.core_gb * 1e9) if converts else 0.0
    scores = one.cached_bytes + halved * one.scores_bytes
    moved = one.moved_bytes + turned * (one.operand_bytes + one.scores_bytes)
    return {
        PRODUCTS: max(one.tiled_flops / arithmetic, (matrices + halved * one.operand_bytes) / bandwidth),
        ATTENTION: max(one.scores_flops / arithmetic, scores / bandwidth),
        MEMORY: unpacking + moved / bandwidth,
        LAUNCHES: (_kernels(card, one) + (AROUND * one.products if converts else 0)) * rates.kernel_us * 1e-6,
    }


def timed(job: Job, card: Accelerator, found: Passes) -> tuple[Time, Time] | None:
    """The times of a prompt and of a decoding step; None where no backend of the card's vendor was measured."""
    reached = rates(card)
    if reached is None:
        return None
    gpus, sequences = job.hardware.gpus, job.serving.concurrency
    prompt = prompt_parts(reached, card, found, gpus, longest(job.serving, found.layers, gpus))
    token = step_parts(reached, card, found.step, gpus)
    flops = [one.flops + one.scores_flops for one in (found.reading, found.step)]
    return (
        _answered(card, "prefill", prompt, Done(job.serving.lengths[0], gpus, found.many * flops[0], 0, gpus * _peak(card))),
        _answered(card, "decode", token, Done(sequences, gpus, flops[1], 0, gpus * _peak(card))),
    )


def longest(serving: Serving, layers: int, gpus: int) -> float:
    """The share of the layers on the GPU that has most of them."""
    return max(Counter(layer_devices(serving, layers, gpus)[:-1]).values()) / layers


def _answered(card: Accelerator, what: str, parts: Parts, done: Done) -> Time:
    spread = facts()[f"{card.vendor}.{what}"]
    seconds = sum(parts.values())
    reason = "llama.cpp's kernels as fast as in the fastest of published runs on other cards, but for the outermost, or as slow"
    return answered(parts, (seconds * spread.low, seconds * spread.high), done, reason)


def _kernels(card: Accelerator, one: Pass) -> int:
    return one.kernels + (one.unpacking if card.vendor in QUANTIZING else 0) - (one.fused if card.vendor == FUSING else 0)


def _cores(card: Accelerator) -> float:
    """Multiprocessors, as many as it takes where they are not known."""
    return card.multiprocessors.value if card.multiprocessors else float("inf")


def _peak(card: Accelerator) -> float:
    """FLOP/s of products in float16 that are summed in float16, as ggml's are: half of those in int8 where these are known, since
    GeForce's peaks of float16 are of sums in float32."""
    known = {name: fact.value for name, fact in card.peak.items()}
    return 1e12 * max(known.get("int8", 0) / 2, known.get("fp16", 0), known.get("fp32", 0))
