"""How long a server's kernels for a mixture's experts take: both products of all experts that a pass touches, with what is
between and around them, as one engine runs them."""

from __future__ import annotations

from math import hypot, inf

from estimator.hardware.accelerator import Accelerator
from estimator.timing.measured import Curves, Experts

GATED = 3
"""Products of an expert with a gate."""
BF16 = 2
"""Bytes of a number between the products."""
RATES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "int4_wo": "bf16",
    "w4a16_mxfp4": "bf16",
    "w4a8_mxfp4_mxfp8": "fp8",
}
"""In which type of the card's peaks each type of experts is multiplied."""
TYPES = {"fp8": "fp8", "fp8-row": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4", "mxfp4": "w4a16_mxfp4"}
"""Formats of stored weights, as the curves name them."""
IN_MXFP8 = {"w4a16_mxfp4": "w4a8_mxfp4_mxfp8"}
"""Types of weights that Blackwell multiplies by numbers in MXFP8, where an engine quantizes what goes in."""
LIKE = {"fp8": "fp8_block"}
"""A type whose kernels an engine runs, where none are known for another: Triton's take scales of either kind."""
FOUR_BITS = ("gptq-int4", "awq-int4", "packed-int4")


def experts_type(stored: str) -> str:
    """As what the curves name experts that are stored so; bfloat16 for those that are not quantized."""
    return "int4_wo" if stored in FOUR_BITS else TYPES.get(stored, stored or "bfloat16")


def measured_experts(measured: Curves, card: Accelerator, engine: str, kind: str) -> Experts | None:
    """An engine's kernels of a type on a card, or those of the type like it; another engine's where its own were not measured;
    None where nothing was, or the card, which borrows these curves, does not multiply in such a type."""
    if RATES.get(kind) not in card.peak:
        return None
    own, like = measured.experts.get(engine, {}), LIKE.get(kind, kind)
    return own.get(kind) or own.get(like) or next((known[kind] for known in measured.experts.values() if kind in known), None)


def experts_seconds(
    p: Experts, card: Accelerator, kind: str, shape: tuple[int, ...], weights_bytes: float, most: float = inf
) -> float:
    """One layer's experts, `shape`: how many are touched, with how many rows in all, [n, k] of all products of one together, and
    how many a rank holds.

        t = launch + each · touched + (compute^p + memory^p)^(1/p) + passes · moved / bandwidth
        compute = 2 · touched · sqrt(r² + tile²) · n · k / (share · peak),  r rows of each expert
        memory  = weights of the experts touched / min(bandwidth_share · bandwidth, most)
        moved   = what goes in and out of the products, in bf16: 2 · rows · (2 k + n)

    and what kernels of exactly these sizes take for each second of that, where they were timed, but no less than reading the
    weights at the whole bandwidth, or multiplying at the peak.

    A tile of rows is multiplied whole however few are in it. `passes`: how often what is moved is read and written: quantized,
    put in order, activated, summed. `most`: bytes that all multiprocessors read in a second.
    """
    touched, rows, n, k, held = shape
    bandwidth = card.memory_bandwidth.value * 1e9
    rate = card.peak[RATES[kind]].value * 1e12
    compute = 2.0 * touched * hypot(rows / touched, p.tile) * n * k / (p.share * rate)
    memory = weights_bytes / min(p.bandwidth_share * bandwidth, most)
    together = (compute**p.sharpness + memory**p.sharpness) ** (1 / p.sharpness)
    moved = BF16 * rows * (2 * k + n)
    begun, factor = 1e-6 * p.launch_us, tuned(p, n, k, held)
    seconds = begun + 1e-6 * p.each_us * touched + float(together) + p.passes * moved / bandwidth
    least = begun + max(weights_bytes / min(bandwidth, most), 2.0 * rows * n * k / rate) / factor
    return factor * max(seconds, least)


def tuned(p: Experts, n: int, k: int, held: int) -> float:
    """Seconds for each of the curve, of so many experts of these sizes or, where ranks divide them, of a part of their width."""
    for size, factor in p.sizes.items():
        experts, width, hidden = map(int, size.split(" x "))
        if (experts, hidden) == (held, k) and GATED * width % n == 0:
            return factor
    return 1.0
