"""A memory snapshot of torch, read without running anything of it.

A pickle is a program. Before it is loaded, each of its instructions is looked at: only those that make plain values are let
through, so that there is nothing to look up or to call; how many there are, and how far they reach into memory, is bounded.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

from estimator.contract.errors import Unreadable
from estimator.measured.record import Amount, Record

KIND = "memory snapshot of torch"
MOST_BYTES = 256 << 20
MOST_INSTRUCTIONS = 30_000_000
PLAIN = {
    *("PROTO", "FRAME", "MEMOIZE", "STOP", "MARK", "NONE", "NEWFALSE", "NEWTRUE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"),
}
"""Instructions that make dictionaries, lists, tuples, texts and numbers, and refer to those that were made."""
_PLACES = ("BINPUT", "LONG_BINPUT")
_BROKEN = (pickle.UnpicklingError, ValueError, TypeError, IndexError, KeyError, EOFError, AttributeError, OverflowError)


def plain(data: bytes, where: str = "snapshot") -> Any:
    """The values of a pickle that has only plain ones. Raises `Unreadable` for any other."""
    if len(data) > MOST_BYTES:
        raise Unreadable(f"has more than {MOST_BYTES >> 20} MiB: record fewer events (max_entries)", where)
    try:
        for number, (opcode, argument, at) in enumerate(pickletools.genops(data)):
            if opcode.name not in PLAIN:
                said = (
                    f"its instruction {opcode.name} at byte {at} makes more than plain values, and nothing of a file is run here"
                )
                raise Unreadable(f"is no memory snapshot: {said}", where)
            if number > MOST_INSTRUCTIONS or (opcode.name in _PLACES and int(argument or 0) > number):
                raise Unreadable("is too large, or broken", where)
        return _Plain(io.BytesIO(data)).load()
    except _BROKEN as error:
        raise Unreadable(f"is no pickle that can be read: {str(error)[:200]}", where) from None


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("a name is looked up")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("something outside is looked up")


def read(data: bytes, where: str = "snapshot") -> Record:
    """The highest of allocated bytes, what was alive there by size, and what was reserved, of the device that did most."""
    found = plain(data, where)
    try:
        return _record(found)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise Unreadable(f"is no memory snapshot as torch.cuda.memory._snapshot() makes it: {str(error)[:200]}", where) from None


def _record(found: dict[str, Any]) -> Record:
    traces, segments = found["device_traces"], found["segments"]
    device = max(range(len(traces)), key=lambda at: len(traces[at]), default=0)
    own = [one for one in segments if one.get("device", 0) == device]
    left = {block["address"]: _size(block["size"]) for one in own for block in _addressed(one) if _in_use(block)}
    before = dict(left)
    for entry in reversed(traces[device] if traces else []):  # backwards, to what was there when recording began
        if entry["action"] == "alloc":
            before.pop(entry["addr"], None)
        elif entry["action"] == "free_completed":
            before[entry["addr"]] = _size(entry["size"])
    alive, live = before, sum(before.values())
    peak, at_peak = live, Counter(alive.values())
    reserved = now = sum(_size(one["total_size"]) for one in own) - _net(traces[device] if traces else [])
    rising = False
    for entry in traces[device] if traces else []:
        action, size = entry["action"], _size(entry.get("size", 0))
        if action == "alloc":
            alive[entry["addr"]] = size
            live += size
            rising = live > peak
            peak = max(peak, live)
        elif action == "free_completed":
            if rising or live == peak:
                at_peak, rising = Counter(alive.values()), False
            live -= alive.pop(entry["addr"], size)
        elif action in ("segment_alloc", "segment_map", "segment_free", "segment_unmap"):
            now += size if action in ("segment_alloc", "segment_map") else -size
            reserved = max(reserved, now)
    if rising:
        at_peak = Counter(alive.values())
    amounts = {"allocated": Amount(peak), "reserved": Amount(reserved)}
    failed = [entry for entry in (traces[device] if traces else []) if entry["action"] == "oom"]
    if failed:
        amounts["requested"] = Amount(_size(failed[-1]["size"]))
    return Record(KIND, amounts, at_peak)


def _net(trace: Iterable[dict[str, Any]]) -> int:
    """Bytes of segments that were taken while it was recorded, less those given back."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    return sum(signs.get(entry["action"], 0) * _size(entry.get("size", 0)) for entry in trace)


def _addressed(segment: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Blocks with their addresses, which old releases leave out."""
    at = segment["address"]
    for block in segment["blocks"]:
        yield {"address": at, **block}
        at += _size(block["size"])


def _in_use(block: dict[str, Any]) -> bool:
    return str(block["state"]).startswith("active")


def _size(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 50:
        raise ValueError(f"{str(value)[:40]} is no number of bytes")
    return value
