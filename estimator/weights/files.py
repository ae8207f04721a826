"""Opening weight files, of which anybody may have written any byte, and how much of one is read at most."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from estimator.contract.errors import InvalidJob, Unreadable
from estimator.facts.spelling import shown

MOST_HEADER_BYTES = 100_000_000
"""The longest header that is read: safetensors' own limit (MAX_HEADER_SIZE in its tensor.rs), kept for every file here."""
MOST_MARKS = 2**21
"""Brackets and commas that a JSON text may have: 260,000 tensors of one file, or two million of an index. As Python keeps some
ten times the bytes of a short value, this bounds memory and time. DeepSeek-V3's index has some 92,000 tensors."""
MOST_ELEMENTS = 2**63
"""No tensor has as many elements: sizes are signed 64-bit numbers everywhere."""


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A file open for reading, and its size in bytes; `InvalidJob` for what is none or cannot be read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable("is a folder; give a file in it", str(path))
        if not stat.S_ISREG(mode):
            raise Unreadable("is not a regular file; give a .safetensors or .gguf file", str(path))
        file = path.open("rb")
    except (OSError, ValueError) as error:
        raise unreadable(error, path) from None
    with file:
        try:
            yield file, os.fstat(file.fileno()).st_size
        except OSError as error:
            raise unreadable(error, path) from None


def unreadable(error: Exception, path: Path) -> InvalidJob:
    """The error of a path that the system refuses."""
    return InvalidJob(f"cannot be read: {getattr(error, 'strerror', None) or error}", str(path))


class _RefusedError(Exception):
    """What a JSON text may not have; the message says so."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's content; no name may come twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _RefusedError(f"has {shown(twice)} twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise _RefusedError(f"has {text}, which is not JSON")


def json_object(data: bytes, path: Path, what: str) -> dict[str, Any]:
    """The object that a JSON text is; `what` names the text in errors ("its header").

    Refused are other values, names that come twice, numbers and letters that JSON does not have, and more brackets and commas
    than `MOST_MARKS`, before anything is built of them.
    """
    if data.count(b",") + data.count(b"{") + data.count(b"[") > MOST_MARKS:
        raise Unreadable(f"{what} has more than {MOST_MARKS:,} brackets and commas, as no published checkpoint has", str(path))
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unreadable(f"{what} has half a surrogate pair, which is no text", str(path)) from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"{what} is not text in UTF-8 (byte {error.start:,} of it)", str(path)) from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"{what} is not JSON (character {error.pos:,} of it: {error.msg})", str(path)) from None
    except RecursionError:
        raise Unreadable(f"{what} is nested too deeply", str(path)) from None
    except _RefusedError as refused:
        raise Unreadable(f"{what} {refused}", str(path)) from None
    except ValueError:
        raise Unreadable(f"{what} has a number of thousands of digits", str(path)) from None
    if not isinstance(found, dict):
        raise Unreadable(f"{what} is not a JSON object", str(path))
    return found
