"""A trace of torch's profiler (`torch.profiler`, `profile_memory=True`, `export_chrome_trace`), as JSON or gzipped JSON.

Each allocation and release is an instant event `[memory]`, one that failed `[OutOfMemory]`, with bytes, address, device, and the
allocator's totals after it (torch/csrc/profiler/collection.cpp, torch/csrc/autograd/profiler_kineto.cpp of 2.13).
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any, NamedTuple

from estimator.contract.errors import Unreadable
from estimator.measured.pickled import MOST_BYTES
from estimator.measured.record import Amount, Record

KIND = "trace of torch's profiler"
GZIP = b"\x1f\x8b"
EVENTS, FAILED = "[memory]", "[OutOfMemory]"
NUMBERS = ("Bytes", "Addr", "Total Allocated", "Total Reserved")
_CPU = 0
_HEAD = 1 << 16


class _Event(NamedTuple):
    """Bytes (negative where they are released), where they lie, and the totals after it; `failed`: an allocation that did."""

    bytes: int
    address: int
    allocated: int
    reserved: int
    failed: bool


def is_trace(data: bytes) -> bool:
    """Whether it begins as one: gzipped, or JSON with a list of events."""
    return data[:2] == GZIP or (data[:_HEAD].lstrip()[:1] == b"{" and b'"traceEvents"' in data[:_HEAD])


def read(data: bytes, where: str = "trace") -> Record:
    """The highest totals of the GPU that has most, else of the CPU; and what was alive there by size, where recording began
    before the first allocation. Raises `Unreadable`."""
    events = parsed_events(unpacked(data, where), where)
    devices: dict[tuple[int, int], list[_Event]] = {}
    try:
        for event in sorted((one for one in events if one.get("name") in (EVENTS, FAILED)), key=lambda one: one["ts"]):
            given = event["args"]
            key = _whole(given["Device Type"]), _whole(given["Device Id"])
            size, at, allocated, reserved = (_whole(given.get(name, 0)) for name in NUMBERS)
            devices.setdefault(key, []).append(_Event(size, at, allocated, reserved, event["name"] == FAILED))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Unreadable(f"is no trace as torch's profiler writes it: {str(error)[:200]}", where) from None
    if not devices:
        raise Unreadable("has no event of memory: record it with torch.profiler.profile(profile_memory=True)", where)
    fullest = max(devices, key=lambda key: (key[0] != _CPU, max(event.allocated for event in devices[key])))
    return _record(devices[fullest])


def _record(events: list[_Event]) -> Record:
    failed = [event for event in events if event.failed]
    steps = [event for event in events if not event.failed] or events
    peak = max(range(len(steps)), key=lambda at: steps[at].allocated)
    reserved = max(event.reserved for event in steps)
    amounts = {"allocated": Amount(max(steps[peak].allocated, 0))}
    if reserved > 0:
        amounts["reserved"] = Amount(reserved)
    if failed:
        amounts |= {"requested": Amount(abs(failed[-1].bytes)), "allocated": Amount(max(failed[-1].allocated, 0))}
    if steps[0].allocated != steps[0].bytes:
        return Record(KIND, amounts)  # what was there before is not known tensor by tensor
    alive: dict[int, int] = {}
    for event in steps[: peak + 1]:
        if event.bytes > 0:
            alive[event.address] = event.bytes
        else:
            alive.pop(event.address, None)
    return Record(KIND, amounts, Counter(alive.values()))


def unpacked(data: bytes, where: str) -> bytes:
    """The JSON of a trace. Raises `Unreadable` for what is too much."""
    if data[:2] == GZIP:
        unpacking = zlib.decompressobj(wbits=31)
        try:
            data = unpacking.decompress(data, MOST_BYTES + 1)
        except zlib.error as error:
            raise Unreadable(f"cannot be unpacked: {error}", where) from None
    if len(data) > MOST_BYTES:
        raise Unreadable(f"has more than {MOST_BYTES >> 20} MiB: record fewer steps", where)
    return data


def parsed_events(data: bytes, where: str) -> list[Any]:
    """The events."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is no JSON that can be read: {str(error)[:200]}", where) from None
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise Unreadable("is no trace: it has no list of traceEvents", where)
    return list(found["traceEvents"])


def _whole(value: Any) -> int:
    if not isinstance(value, int) or abs(value) >= 1 << 64:
        raise ValueError(f"{str(value)[:40]} is no whole number")
    return value
