"""Any record of measured memory, told by what is in it."""

from __future__ import annotations

from pathlib import Path

from estimator.contract.errors import Unreadable
from estimator.contract.reading import decoded
from estimator.measured import logs, oom, pickled, refusals, runs, trace
from estimator.measured.record import Record

MOST_TEXT = 16 << 20
"""Bytes of a log that are read: the last ones, of a longer one."""
LOOKED_AT = 1 << 16
"""Characters of a text that say whether it is a trace."""
TAKEN = (
    "an out-of-memory message, torch.cuda.memory_summary(), a memory snapshot of torch, a trace of its profiler with memory, "
    "nvidia-smi's csv or table, a record of watch(), or the log of a trainer, vLLM, SGLang or llama.cpp"
)


def read_measured(given: str | bytes, where: str = "measured") -> Record:
    """A record that was pasted or sent. Raises `Unreadable` for what has no figure of memory that is known."""
    if isinstance(given, bytes):
        if given[:1] == b"\x80":
            return pickled.read(given, where)
        if trace.is_trace(given):
            return trace.read(given, where)
        given = decoded(given[-MOST_TEXT:], where)
    elif trace.is_trace(given[:LOOKED_AT].encode()):
        return trace.read(given.encode(), where)
    try:
        for read in (runs.read, oom.read, refusals.read, logs.summary, logs.samples, logs.log):
            if found := read(given):
                return found
    except ValueError as error:
        raise Unreadable(f"has an amount that cannot be read: {error}", where) from None
    raise Unreadable(f"has no figure of memory that is known: give {TAKEN}", where)


def read_file(path: str | Path) -> Record:
    """A record in a file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(pickled.MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}", str(path)) from None
    return read_measured(data, str(path))
