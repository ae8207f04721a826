"""A file's text and its bytes, the unified diff between two texts, and a file that is replaced as a whole or not at all."""

from __future__ import annotations

import difflib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from estimator.contract.errors import Unreadable
from estimator.contract.reading import MOST_BYTES, decoded

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Original:
    """A file as it is: its bytes, and its text with line ends as \\n."""

    data: bytes
    text: str

    def with_text(self, text: str) -> bytes:
        """Bytes of another text with this file's line ends, and its byte order mark if it has one."""
        ends = "\r\n" if b"\r\n" in self.data else "\n"
        return (BOM if self.data.startswith(BOM) else b"") + text.replace("\n", ends).encode()


def original(data: bytes, where: str) -> Original:
    """A file's bytes as text that can be edited. Raises `InvalidJob` where line ends of several kinds would not be kept."""
    found = Original(data, decoded(data, where))
    if found.with_text(found.text) != data:
        raise Unreadable("has line ends of several kinds: make them alike first", where)
    return found


def read_original(path: Path) -> Original:
    """A file on disk, of `MOST_BYTES` at most."""
    try:
        data = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}", str(path)) from None
    if not data:
        raise Unreadable(f"is empty, or has more than {MOST_BYTES:,} bytes", str(path))
    return original(data, str(path))


def unified(name: str, before: str, after: str) -> str:
    """The difference as `patch -p0` and `git apply -p0` take it."""
    header = name + ("\t" if " " in name else "")
    lines = difflib.unified_diff(_lines(before), _lines(after), header, header, lineterm="\n")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines with their ends, where only \\n ends one."""
    found = text.split("\n")
    return [f"{line}\n" for line in found[:-1]] + ([found[-1]] if found[-1] else [])


def replace(path: Path, before: bytes, after: bytes) -> None:
    """Put a file's new bytes in the place of the old in one move. Raises `InvalidJob` where it is no longer as it was read."""
    path = path.resolve()
    temporary = None
    try:
        if path.read_bytes() != before:
            raise Unreadable("was changed in the meantime: nothing was written", str(path))
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, path.stat().st_mode & 0o7777)
        os.replace(temporary, path)
    except OSError as error:
        raise Unreadable(f"cannot be written: {error.strerror or error}", str(path)) from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
