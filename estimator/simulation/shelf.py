"""What took long to find out, kept in the user's cache folder: a file per question, the least recently used dropped."""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "WILLITFIT_CACHE"
"""The environment variable that names the folder; empty: nothing is kept."""
MOST_FILES = 256
MOST_BYTES = 2**28
"""What one file may unpack to."""


def folder() -> Path | None:
    """Where files are: what the variable says, else in the system's usual place; None for nowhere."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given).expanduser() if given else None
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "willitfit" / "counted"


def read(key: str) -> Any:
    """What is kept under a key; None where nothing is, or it cannot be read."""
    where = folder()
    if where is None:
        return None
    path = where / f"{key}.json.z"
    try:
        packed = path.read_bytes()
        found = json.loads(zlib.decompressobj().decompress(packed, MOST_BYTES))
        os.utime(path)
    except (OSError, ValueError, zlib.error):
        return None
    return found


def write(key: str, value: Any) -> None:
    """Keep something that is JSON; where the folder cannot be written to, nothing is kept, and nothing said."""
    where = folder()
    if where is None:
        return
    with suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        partial = where / f"{key}.{os.getpid()}"
        partial.write_bytes(zlib.compress(json.dumps(value).encode()))
        os.replace(partial, where / f"{key}.json.z")
        files = sorted(where.glob("*.json.z"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)
