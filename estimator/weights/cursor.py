"""Reading the values of a GGUF header one after the other, never more of the file than they need."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from estimator.contract.errors import InvalidJob
from estimator.weights.files import MOST_HEADER_BYTES

FIRST_BYTES = 2**20
"""How much is read at once, to begin with."""
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
"""The `struct` letter of each type of number, by `gguf_metadata_value_type` (ggml-org/ggml docs/gguf.md)."""
BOOL, STRING, ARRAY = 7, 8, 9
FEWEST_BYTES = {kind: struct.calcsize(letter) for kind, letter in NUMBERS.items()} | {BOOL: 1, STRING: 8, ARRAY: 12}
"""Bytes that a value of each type has at least: a string its length, an array its type and its length."""
MOST_VALUES = 2**22
"""Values that all arrays may have together; this bounds memory and time. Gemma 3's 262,144 tokens, with their scores, types
and merges, are 1.3 million."""
DEEPEST = 8
"""How deep arrays may be in each other; no published file has any in another."""
ARRAY_VALUES = 64
"""How many values an array in an array counts for, as reading one costs as much."""
_LENGTH = struct.Struct("<Q")


class Cursor:
    """A place in the header of an open file of `size` bytes; `data` is what was read of it so far."""

    def __init__(self, file: BinaryIO, size: int, path: Path):
        self.file, self.size, self.path = file, size, path
        self.data, self.at, self.values = b"", 0, 0

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.size - self.at

    def refused(self, why: str) -> InvalidJob:
        """The error of what stands before this place."""
        return InvalidJob(why, str(self.path))

    def need(self, nbytes: int, what: str) -> None:
        """Has that many bytes from here on in `data`. The file says how many, so they are checked before any is read."""
        end = self.at + nbytes
        if end <= len(self.data):
            return
        if end > self.size:
            message = f"ends at byte {self.size:,}, within {what} (byte {self.at:,}, {nbytes:,} bytes)"
            raise self.refused(f"{message}; download it again")
        if end > MOST_HEADER_BYTES:
            raise self.refused(f"its header is longer than {MOST_HEADER_BYTES:,} bytes, which is all that is read ({what})")
        wanted = min(max(end, FIRST_BYTES, 2 * len(self.data)), self.size, MOST_HEADER_BYTES)
        self.data += self.file.read(wanted - len(self.data))
        if end > len(self.data):
            raise self.refused(f"ended at byte {len(self.data):,} while it was read, {self.size:,} bytes long before")

    def take(self, count: int, what: str) -> bytes:
        """The next bytes as they are."""
        self.need(count, what)
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, letter: str, count: int, what: str = "the header") -> tuple[Any, ...]:
        """The next numbers, little-endian, of the type that `struct` gives that letter."""
        numbers = struct.Struct(f"<{count}{letter}")
        self.need(numbers.size, what)
        self.at += numbers.size
        return numbers.unpack_from(self.data, self.at - numbers.size)

    def number(self, letter: str) -> int:
        """The next whole number."""
        found: int = self.numbers(letter, 1)[0]
        return found

    def text(self, what: str) -> str:
        """The next string: its length in bytes, and UTF-8."""
        begin = self.at + 8
        if begin > len(self.data):
            self.need(8, what)
        end = begin + _LENGTH.unpack_from(self.data, self.at)[0]
        if end > len(self.data):
            self.need(end - self.at, what)
        self.at = end
        try:
            return self.data[begin:end].decode()
        except UnicodeDecodeError as error:
            raise self.refused(f"{what} is not text in UTF-8 (byte {begin + error.start:,})") from None

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        """The next value of the metadata, of a type given by its number; an array is a tuple."""
        if kind == ARRAY:
            return self._array(key, depth + 1)
        return self._values(kind, 1, key, depth)[0]

    def _array(self, key: str, depth: int) -> tuple[Any, ...]:
        if depth > DEEPEST:
            raise self.refused(f"the metadata's {key} has more than {DEEPEST} arrays in each other (byte {self.at:,})")
        kind, count = self.number("I"), self.number("Q")
        if count * FEWEST_BYTES.get(kind, 0) > self.left:
            message = f"the metadata's {key} has {count:,} values, more than the file can hold (byte {self.at - 8:,})"
            raise self.refused(f"{message}; download it again")
        self.values += count * (ARRAY_VALUES if kind == ARRAY else 1)
        if self.values > MOST_VALUES:
            raise self.refused(f"its metadata has arrays of more than {MOST_VALUES:,} values; no published file has ({key})")
        return self._values(kind, count, key, depth)

    def _values(self, kind: int, count: int, key: str, depth: int) -> tuple[Any, ...]:
        if kind in NUMBERS:
            return self.numbers(NUMBERS[kind], count, key)
        if kind == STRING:
            return self._texts(count, key)
        if kind == BOOL:
            return self._booleans(count, key)
        if kind == ARRAY:
            return tuple([self._array(key, depth + 1) for _ in range(count)])
        raise self.refused(f"the metadata's {key} is of the unknown type {kind} (byte {self.at:,}); known are 0 to 12")

    def _texts(self, count: int, key: str) -> tuple[str, ...]:
        """The next strings. Vocabularies have hundreds of thousands: those that lie in `data` are taken without a call each."""
        found: list[str] = []
        unpacked = _LENGTH.unpack_from
        while len(found) < count:
            data, at, have = self.data, self.at, len(self.data)
            try:
                for _ in range(count - len(found)):
                    end = at + 8 + unpacked(data, at)[0]
                    if end > have:
                        break
                    found.append(data[at + 8 : end].decode())
                    at = end
            except (struct.error, UnicodeDecodeError):
                pass  # `text` reads on, or says what is wrong
            self.at = at
            if len(found) < count:
                found.append(self.text(key))
        return tuple(found)

    def _booleans(self, count: int, key: str) -> tuple[bool, ...]:
        found = self.take(count, key)
        if found.strip(b"\0\1"):
            raise self.refused(f"the metadata's {key} has a truth value that is neither 0 nor 1 (byte {self.at - count:,})")
        return tuple([value == 1 for value in found])
