"""How long an operation takes on an accelerator, by curves fitted to measurements.

Every function is pure, returns seconds, and takes the card for its peak and bandwidth, so that curves measured on one card can
serve another of its kind. Bytes and FLOPs are totals; links and networks are GB/s per GPU and direction. What was fitted, on
what, and how far off it is: docs/efficiency.md. `curves(name)` reads a card's parameters (estimator.timing.measured).
"""

from __future__ import annotations

from math import ceil, inf, log2, sqrt

from estimator.contract.errors import NotModelled
from estimator.hardware.accelerator import Accelerator
from estimator.timing.measured import Curves, Direction, Head, Kind, curves, pcie, shared

__all__ = [
    "attention_seconds",
    "collective_seconds",
    "copy_seconds",
    "curves",
    "decode_seconds",
    "matmul_seconds",
    "memory_seconds",
    "quantize_seconds",
    "transfer_seconds",
]

TILE_M, TILE_N = 128, 256
"""Rows and columns of the output that a multiprocessor takes at a time: cuBLAS's most frequent tile on large products."""
DTYPES = {
    "bfloat16": ("bf16", "bfloat16", 2.0, 2.0),
    "float16": ("fp16", "bfloat16", 2.0, 2.0),
    "tf32": ("tf32", "bfloat16", 4.0, 4.0),
    "float32": ("fp32", "bfloat16", 4.0, 4.0),
    "fp8": ("fp8", "fp8", 1.0, 2.0),
    "fp8_block": ("fp8", "fp8_block", 1.0, 2.0),
    "int8": ("int8", "int8", 1.0, 2.0),
    "nvfp4": ("fp4", "nvfp4", 0.5625, 2.0),
}
"""For each dtype: the name of its peak, the dtype whose curve it takes (float16, tf32 and float32 were not measured: they run
the same kernels at another rate), bytes of an input's element with its share of a scale, and bytes of an output's."""


def peak(card: Accelerator, dtype: str) -> float:
    """FLOP/s of a dtype's products; `NotModelled` if they are not known."""
    fact = card.peak.get(DTYPES[dtype][0])
    if fact is None:
        raise NotModelled(f"the peak of {card.name} in {dtype} is not known")
    return fact.value * 1e12


def matmul_seconds(
    measured: Curves,
    card: Accelerator,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    dtype: str = "bfloat16",
    sustained: bool = True,
    quantize: bool = False,
    moved: float | None = None,
    most: float = inf,
) -> float:
    """`batch` products of [m, k] and [k, n].

        t = launch + (compute^p + memory^p)^(1/p)
        compute = max(F' (1 + prologue / k) / (share · peak), F / (sustained · peak)) + step · k
        memory  = `moved`, or the bytes read and written once / min(bandwidth_share · bandwidth, most)

    F = 2·batch·m·n·k, and F' is F with `wave_share` of what whole waves of whole tiles would add, once there is a tile for every
    multiprocessor. `prologue`: the steps of k that a tile spends filling and emptying its pipeline; `step`: what one step of k
    takes however small the product is. `sustained`: no faster than a card is for long under its power limit, against the burst of
    a cold one. `most`: bytes that all multiprocessors read in a second. `quantize`: with the pass that turns the [m, k] operand
    from bf16 into fp8, int8 or nvfp4.

    Raises `NotModelled` for a dtype that was not measured on the card, or whose peak is not known.
    """
    _, like, narrow, wide = DTYPES[dtype]
    p = measured.matmul.get(like)
    if p is None:
        raise NotModelled(f"products in {dtype} were not measured on {measured.borrowed_from or measured.name}")
    rate, bandwidth = peak(card, dtype), card.memory_bandwidth.value * 1e9
    flops = padded = 2.0 * batch * m * n * k
    if p.wave_share:
        rows, columns = min(TILE_M, 1 << (m - 1).bit_length()), min(TILE_N, 1 << (n - 1).bit_length())
        tiles = batch * ceil(m / rows) * ceil(n / columns)
        if tiles >= measured.multiprocessors:
            waves = ceil(tiles / measured.multiprocessors) * measured.multiprocessors
            padded += p.wave_share * (2.0 * waves * rows * columns * k - flops)
    compute = padded * (1 + p.prologue / k) / (p.share * rate)
    if sustained:
        compute = max(compute, flops / (p.sustained.value * rate))
    compute += p.step_ns * 1e-9 * k
    if moved is None:
        moved = batch * (narrow * (m * k + n * k) + wide * m * n)
    memory = moved / min(p.bandwidth_share * bandwidth, most)
    seconds = p.launch_us * 1e-6 + float((compute**p.sharpness + memory**p.sharpness) ** (1 / p.sharpness))
    if quantize and p.quantize_bytes:
        seconds += batch * m * k * p.quantize_bytes / (measured.memory.share * bandwidth)
    return seconds


def quantize_seconds(measured: Curves, card: Accelerator, m: int, k: int, dtype: str) -> float:
    """The pass that turns the [m, k] operand of a product from bf16 into its dtype, which products were timed with:

    t = launch of such a product - launch of one in bf16 + m · k · bytes / (share · bandwidth)
    """
    p, plain = measured.matmul[DTYPES[dtype][1]], measured.matmul["bfloat16"]
    moved = m * k * (p.quantize_bytes or 0.0) / (measured.memory.share * card.memory_bandwidth.value * 1e9)
    return max(0.0, p.launch_us - plain.launch_us) * 1e-6 + moved


def attention_seconds(
    measured: Curves,
    card: Accelerator,
    flops: float,
    head_size: int,
    query_length: int,
    causal: bool,
    direction: Direction = "forward",
    kernel: str = "flash2",
    dtype: str = "bfloat16",
) -> float:
    """One call of a kernel that never holds the scores, over all its heads and sequences.

        t = launch + F / (share · peak) · (1 + half / s),  F = flops · (1 + 1/s) / 2 with a causal mask, else flops

    `flops` counts the full square of scores, as the tape does: 4·s·s·d forward, 10·s·s·d backward, per head and sequence. `half`
    is the length s at which half of `share` is reached. Between head sizes that were measured it interpolates, beyond them it
    takes the nearest.

    Raises `NotModelled` for a kernel that was not measured on the card in that dtype.
    """
    directions = measured.attention.get(kernel, {}).get(DTYPES[dtype][1])
    if directions is None or direction not in directions:
        known = ", ".join(sorted(f"{name} in {kind}" for name, kinds in measured.attention.items() for kind in kinds))
        raise NotModelled(
            f"attention by {kernel} in {dtype}, {direction}, was not measured on {measured.name}; known are {known}"
        )
    p = directions[direction]
    share, half = _at_size(p.heads, head_size, causal)
    done = flops * (1 + 1 / query_length) / 2 if causal else flops
    return p.launch_us * 1e-6 + done / (share * peak(card, dtype)) * (1 + half / query_length)


def _at_size(heads: list[Head], size: int, causal: bool) -> tuple[float, float]:
    """Share and half-length at a head size."""
    below = above = heads[0]
    for above in heads:
        if above.size >= size:
            break
        below = above
    (share, half), (share_above, half_above) = (
        (head.causal_share, head.causal_half) if causal else (head.full_share, head.full_half) for head in (below, above)
    )
    x = (size - below.size) / (above.size - below.size) if below.size < size < above.size else float(size >= above.size)
    return share + x * (share_above - share), half + x * (half_above - half)


def memory_seconds(measured: Curves, card: Accelerator, moved_bytes: float) -> float:
    """One kernel that does little but read and write: norms, activations, casts, an optimizer's step.

    t = launch + bytes / (share · bandwidth)
    """
    p = measured.memory
    return p.launch_us * 1e-6 + moved_bytes / (p.share * card.memory_bandwidth.value * 1e9)


def decode_seconds(measured: Curves, card: Accelerator, cache_bytes: float, most: float = inf) -> float:
    """Attention of one layer for one new token per sequence, which reads the keys and values.

    t = launch + bytes / min(share · bandwidth, most)
    """
    p = measured.decode
    return p.launch_us * 1e-6 + cache_bytes / min(p.share * card.memory_bandwidth.value * 1e9, most)


def collective_seconds(
    measured: Curves | None,
    kind: Kind,
    payload_bytes: float,
    ranks_in_node: int,
    nodes: int = 1,
    link: float = 0.0,
    network: float = 0.0,
) -> float:
    """One NCCL collective. The payload is what nccl-tests calls so: the whole gathered, scattered or reduced tensor, or what one
    rank sends in all to all.

        in a node:  t = alpha + c · S / (share · link) + gamma · sqrt(S in MiB),  c = 2(n-1)/n for all reduce, else (n-1)/n
        beyond it:  t = alpha + hops · hop + max(the rest of that, bytes per NIC / (network_share · network))

    A GPU's NIC carries c(nodes) · S / ranks_in_node, of all to all (nodes-1)/nodes · S. `link`: GB/s per GPU and direction in the
    node; up to PCIe's speed the curves of a PCIe box serve, and where nothing was measured a stated latency, and the share of a
    link that copies reach. `network`: GB/s per GPU and direction between nodes. For numbers of ranks between those measured,
    parameters are interpolated over the logarithm; beyond, the nearest serve.
    """
    fixed = moving = 0.0
    mib = payload_bytes / 2**20
    if ranks_in_node > 1:
        alpha, share, gamma = shared().unknown_collective_us.value, shared().link_share.value, 0.0
        if measured is not None:
            table = (measured if link > shared().fastest_pcie.value else pcie()).collectives[kind].ranks
            alpha, share, gamma = _ranks(table, ranks_in_node)
        fixed = alpha * 1e-6
        moving = _factor(kind, ranks_in_node) * payload_bytes / (share * link * 1e9) + gamma * 1e-6 * sqrt(mib)
    if nodes > 1:
        facts = shared()
        carried = _factor(kind, nodes) * payload_bytes / (1 if kind == "all_to_all" else ranks_in_node)
        hops = 2 * log2(nodes) if kind == "all_reduce" else 1 if kind == "all_to_all" else log2(nodes)
        fixed += facts.network_hop_us.value * 1e-6 * hops
        moving = max(moving, carried / (facts.network_share.value * network * 1e9))
    return fixed + moving


def _factor(kind: Kind, ranks: int) -> float:
    return (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks


def _ranks(table: dict[int, tuple[float, float, float]], ranks: int) -> tuple[float, float, float]:
    """Latency, share and root term at a number of ranks."""
    if ranks in table:
        return table[ranks]
    low, high = max((n for n in table if n < ranks), default=min(table)), min((n for n in table if n > ranks), default=max(table))
    if high <= low:
        return table[low]
    x = log2(ranks / low) / log2(high / low)
    alpha, share, gamma = (a + x * (b - a) for a, b in zip(table[low], table[high], strict=True))
    return alpha, share, gamma


def transfer_seconds(moved_bytes: float, rate: float) -> float:
    """One GPU's copy to another over a link of so many GB/s: what peer-to-peer tests reach of it, without latency."""
    return moved_bytes / (shared().link_share.value * rate * 1e9)


def copy_seconds(moved_bytes: float, rate: float, pinned: bool = True) -> float:
    """A copy between host and GPU over a bus of so many GB/s; memory not pinned goes through the driver's staging buffer."""
    facts = shared()
    return (
        moved_bytes / (facts.host_pinned.value * rate * 1e9)
        if pinned
        else moved_bytes / (min(facts.host_pageable.value, rate) * 1e9)
    )
