"""A worker process: one question after the other, each within a budget of processor time and of memory.

The kernel keeps the budget, whatever the interpreter is busy with: a timer that counts the process's own time ends it (SIGPROF),
and a limit on its addresses refuses more memory. Where the platform has neither, the server's own clock is all there is.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
from typing import Any

from .answers import answer

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

OUT_OF_MEMORY = 77
"""Exit code of a process whose question took more memory than it may."""
SIZE = struct.Struct("!Q")
"""How long the message is that follows."""


def packed(content: Any) -> bytes:
    """A message, as the server and its workers send it."""
    data = pickle.dumps(content)
    return SIZE.pack(len(data)) + data


def work(connection: socket.socket, memory: int, nice: int) -> None:
    """Answer what comes, until the server closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server's to obey
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(os, "nice"):
        os.nice(nice)
    _limit_memory(memory)
    with connection, connection.makefile("rb") as incoming:
        while size := incoming.read(SIZE.size):
            kind, arguments, seconds = pickle.loads(incoming.read(SIZE.unpack(size)[0]))
            try:
                _alarm(seconds)
                reply = packed(answer(kind, arguments))
                _alarm(0)
            except MemoryError:
                os._exit(OUT_OF_MEMORY)
            connection.sendall(reply)


def _alarm(seconds: float) -> None:
    """End this process when it has computed for so long; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(extra: int) -> None:
    """Refuse this process more than `extra` bytes beside what it has."""
    try:
        with open("/proc/self/statm") as file:
            has = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + extra, has + extra))
    except (OSError, ValueError, AttributeError):  # no Linux
        return
