"""The message of an allocation that failed, in the words of every release of torch since 1.0, on CUDA, HIP, XPU, NPU and MPS.

c10/cuda/CUDACachingAllocator.cpp (2.13, and 1.0 to 2.12 for older words); torch_npu's and ATen/mps/MPSAllocator.mm have the same
figures. The size that is named is not the tensor's but that of the segment which was asked of the driver (`get_allocation_size`).
"""

from __future__ import annotations

import re

from estimator.measured.record import Amount, Record, amount
from estimator.runtime.allocator import LARGE, LARGE_SEGMENT, ROUNDING, SMALL, SMALL_SEGMENT

KIND = "out of memory"
_SIZE = r"(?:[\d,]+(?:\.\d+)?\s*(?:[KMGT]i?B|bytes?))"
_START = re.compile(rf"out of memory\b.{{0,400}}?Tried to allocate\s+({_SIZE})", re.IGNORECASE | re.DOTALL)
_FIGURES: tuple[tuple[str, str], ...] = (
    ("capacity", rf"total capac(?:i)?ty of ({_SIZE})|({_SIZE}) total capacity|max allowed:\s*({_SIZE})"),
    ("free", rf"of which ({_SIZE}) is free|({_SIZE}) free"),
    ("used", rf"this process has ({_SIZE}) memory in use"),
    ("allocated", rf"({_SIZE}) is allocated by PyTorch|({_SIZE}) already allocated|MPS allocated:\s*({_SIZE})"),
    ("unallocated", rf"({_SIZE}) is reserved by PyTorch but unallocated|({_SIZE}) cached"),
    ("reserved", rf"({_SIZE}) reserved in total"),
    ("allowed", rf"({_SIZE}) allowed"),
    ("pools", rf"with ({_SIZE}) allocated in private pools"),
)
_OTHERS = re.compile(rf"Process \d+ has ({_SIZE}) memory in use", re.IGNORECASE)
_NEAR = 1500
"""Characters after the start in which the message ends."""


def read(text: str) -> Record | None:
    """The last such message of a log; None if it has none."""
    starts = list(_START.finditer(text))
    if not starts:
        return None
    start = starts[-1]
    message = text[start.start() : start.end() + _NEAR]
    message = re.split(r"\n\s*\n|See documentation|Traceback", message, maxsplit=1)[0]
    amounts = {"requested": amount(start[1])}
    for name, pattern in _FIGURES:
        if found := re.search(pattern, message, re.IGNORECASE):
            amounts[name] = amount(next(group for group in found.groups() if group))
    others = [amount(size) for size in _OTHERS.findall(message)]
    if others and "used" not in amounts and len(others) == 1:
        amounts["used"] = others[0]  # the one process that the driver names is, where it is alone, this one
    elif others:
        amounts["others"] = Amount(sum(one.bytes for one in others), sum(one.within for one in others))
    if "reserved" not in amounts and {"allocated", "unallocated"} <= amounts.keys():
        parts = amounts["allocated"], amounts["unallocated"]
        amounts["reserved"] = Amount(sum(one.bytes for one in parts), sum(one.within for one in parts))
    return Record(KIND, amounts)


def segment(size: int) -> int:
    """Bytes that the allocator asks of the driver for a tensor of so many (`get_allocation_size`)."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE else -(-size // ROUNDING) * ROUNDING
