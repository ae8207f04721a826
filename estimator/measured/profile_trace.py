"""Where the time of a step goes by a trace of torch's profiler (`export_chrome_trace`), with a GPU's kernels or of a CPU alone.

Each moment of the steps is counted once, as the first of these that runs in it: products and attention, other kernels, copies,
exchanges, the data loader; what is left is the host's. On a CPU, where all of them take turns, the loader comes first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from estimator.contract.errors import Unreadable
from estimator.measured.profile import COMPUTE, COPIES, DATA, EXCHANGE, HOST, MEMORY, Profile

KIND = "trace of torch's profiler"
STEP = re.compile(r"ProfilerStep#\d+")
LOADER = "enumerate(DataLoader)#"
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
EXCHANGED = re.compile(
    r"nccl|rccl|nvshmem|deep_ep|userbuffers|all_?reduce|all_?gather|reduce_?scatter|gloo:|c10d::", re.IGNORECASE
)
MULTIPLIED = re.compile(
    r"gemm|gemv|cutlass|xmma|nvjet|cublas|wgmma|Cijk_|conv(?!ert)|fprop|dgrad|wgrad|flash|fmha|attention|\bmha_"
    r"|aten::(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|_scaled_mm|mkldnn_linear)$",
    re.IGNORECASE,
)
"""Kernels and operations that multiply (cuBLAS, CUTLASS, hipBLASLt, cuDNN, FlashAttention), by parts of their names."""
HOST_COPY = re.compile(r"Memcpy (HtoD|DtoH)")
FIRST_ON_GPU: tuple[str, ...] = (COMPUTE, MEMORY, COPIES, EXCHANGE, DATA)
FIRST_ON_CPU: tuple[str, ...] = (DATA, COMPUTE, EXCHANGE, MEMORY)


MOST_MICROSECONDS = 1e18


class Span(NamedTuple):
    """What runs from when to when, in microseconds."""

    what: str
    start: float
    stop: float


def profile(events: Sequence[Any], where: str) -> Profile:
    """The shares of the time of the steps that were recorded. Raises `Unreadable`."""
    try:
        lasting = [one for one in events if isinstance(one, dict) and one.get("ph") == "X" and float(one.get("dur", 0)) >= 0]
        steps = [
            _span("", one) for one in lasting if one.get("cat") == "user_annotation" and STEP.fullmatch(str(one.get("name")))
        ]
        kernels = [one for one in lasting if one.get("cat") in ON_GPU]
        order: Sequence[str] = FIRST_ON_GPU if kernels else FIRST_ON_CPU
        loading = [_span(DATA, one) for one in lasting if str(one.get("name")).startswith(LOADER)]
        if kernels:
            busiest = Counter(_device(one) for one in kernels).most_common(1)[0][0]
            spans = [_span(_kernel(one), one) for one in kernels if _device(one) == busiest]
        else:
            operations = [one for one in lasting if one.get("cat") == "cpu_op" and _works(str(one.get("name")))]
            spans = [_span(_operation(str(one.get("name"))), one) for one in operations]
    except (TypeError, ValueError) as error:
        raise Unreadable(f"is no trace as torch's profiler writes it: {str(error)[:200]}", where) from None
    if not spans:
        raise Unreadable("has no kernels and no operations: record it with ProfilerActivity.CUDA, or CPU", where)
    window = steps or [Span("", min(one.start for one in spans), max(one.stop for one in spans))]
    whole = sum(one.stop - one.start for one in window)
    if whole <= 0:
        raise Unreadable("has steps of no length", where)
    spent = _spent([*spans, *loading], window, order)
    shares = {what: microseconds / whole for what, microseconds in spent.items()}
    shares[HOST] = max(0.0, 1 - sum(shares.values()))
    seconds = whole / len(steps) / 1e6 if steps else None
    return Profile(KIND, shares, seconds, {"steps": len(steps), "kernels": len(spans), "on a GPU": float(bool(kernels))})


def _span(what: str, event: Mapping[str, Any]) -> Span:
    start, length = float(event.get("ts", 0)), float(event.get("dur", 0))
    if not (isfinite(start) and isfinite(length) and abs(start) + length < MOST_MICROSECONDS):
        raise ValueError(f"a time of {start:g} for {length:g} microseconds")
    return Span(what, start, start + length)


def _device(event: Mapping[str, Any]) -> str:
    given = event.get("args")
    return str(given.get("device")) if isinstance(given, dict) else ""


def _kernel(event: Mapping[str, Any]) -> str:
    name = str(event.get("name"))
    if event.get("cat") == "gpu_memcpy":
        return COPIES if HOST_COPY.search(name) else MEMORY
    return _operation(name)


def _operation(name: str) -> str:
    if EXCHANGED.search(name):
        return EXCHANGE
    return COMPUTE if MULTIPLIED.search(name) else MEMORY


def _works(name: str) -> bool:
    """Whether it is an operation of torch's library, and none that calls others."""
    return name.startswith(("aten::", "c10d::", "gloo:"))


def _spent(spans: Iterable[Span], window: Iterable[Span], order: Sequence[str]) -> dict[str, float]:
    """Microseconds within the window in which each runs and none that comes before it in the order."""
    inside = len(order)
    ends: list[tuple[float, int, int]] = []
    for one in spans:
        ends += [(one.start, order.index(one.what), 1), (one.stop, order.index(one.what), -1)]
    for one in window:
        ends += [(one.start, inside, 1), (one.stop, inside, -1)]
    ends.sort(key=lambda end: end[0])
    running = [0] * (inside + 1)
    found = dict.fromkeys(order, 0.0)
    last = ends[0][0]
    for at, which, change in ends:
        if running[inside] and at > last:
            first = next((number for number in range(inside) if running[number]), None)
            if first is not None:
                found[order[first]] += at - last
        last = at
        running[which] += change
    return found
