"""The header of a GGUF file: metadata, and the name, shape, type and place of every tensor, whose bytes are not read.

After the format's description and its reader (ggml-org/ggml docs/gguf.md; llama.cpp 067d44f6c ggml/src/gguf.cpp,
`gguf_init_from_reader`). Versions 2 and 3 are read, little-endian, the only order that published files have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator.facts.spelling import shown
from estimator.weights.checkpoint import Checkpoint, Tensor
from estimator.weights.cursor import Cursor
from estimator.weights.dtypes import ggml_removed, ggml_types
from estimator.weights.files import MOST_ELEMENTS, opened

MAGIC = b"GGUF"
VERSIONS = (2, 3)
OLDER = (b"lmgg", b"fmgg", b"tjgg", b"algg")
"""The first bytes of files that ggml wrote before GGUF: "ggml", "ggmf", "ggjt", "ggla", from the last byte to the first."""
ALIGNMENT = 32
"""Bytes to a multiple of which every tensor is moved, unless `general.alignment` says otherwise."""
MOST_DIMENSIONS = 4
MOST_ENTRIES = 2**16
"""Tensors, or entries of metadata, that a file may have. DeepSeek-V3's has some 1,100 tensors, as experts are stored together."""
SMALLEST_PAIR, SMALLEST_TENSOR = 8 + 1 + 4 + 1, 8 + 4 + 4 + 8
"""Bytes that an entry of the metadata, or a tensor's description, has at least."""


def read_part(path: Path) -> Checkpoint:
    """What one GGUF file holds; only its header is read. `InvalidJob` says what is wrong with a file that is broken."""
    with opened(path) as (file, size):
        cursor = Cursor(file, size, path)
        _version(cursor)
        tensor_count, pair_count = cursor.number("Q"), cursor.number("Q")
        _bounded(cursor, tensor_count, SMALLEST_TENSOR, "tensors")
        _bounded(cursor, pair_count, SMALLEST_PAIR, "entries of metadata")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = cursor.text("a key of the metadata")
            if not key or key in metadata:
                raise cursor.refused(f"the metadata has {shown(key)} twice" if key else "the metadata has a key without letters")
            metadata[key] = cursor.value(cursor.number("I"), shown(key))
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            raise cursor.refused(f"general.alignment is {shown(str(alignment))}; it is a power of two")
        described = [_described(cursor) for _ in range(tensor_count)]
        placed = _in_place(described, _padded(cursor.at, alignment), alignment, cursor)
    return Checkpoint(str(path), "gguf", placed, metadata, (path.name,))


def _version(cursor: Cursor) -> None:
    if not cursor.size:
        raise cursor.refused("is empty; download it again")
    magic = cursor.take(4, "the letters GGUF")
    if magic in OLDER:
        raise cursor.refused("is of a format that ggml had before GGUF; convert the model to GGUF anew")
    if magic != MAGIC:
        raise cursor.refused(f"begins with {magic!r}, not with b'GGUF'; give a .gguf file")
    version = cursor.number("I")
    if version and not version & 0xFFFF:
        raise cursor.refused("is big-endian GGUF, which is not read; gguf_convert_endian.py makes a little-endian file of it")
    if version == 1:
        raise cursor.refused("is GGUF version 1, which is not read, nor by llama.cpp; convert the model anew")
    if version not in VERSIONS:
        raise cursor.refused(f"is GGUF version {version}; versions {' and '.join(map(str, VERSIONS))} are read")


def _bounded(cursor: Cursor, count: int, smallest: int, what: str) -> None:
    """Refuses a count of things that what is left of the file cannot hold, or that no checkpoint has."""
    if count * smallest > cursor.left:
        raise cursor.refused(f"claims {count:,} {what}, more than its {cursor.size:,} bytes can hold; download it again")
    if count > MOST_ENTRIES:
        raise cursor.refused(f"claims {count:,} {what}; at most {MOST_ENTRIES:,} are read, and no published file has as many")


def _described(cursor: Cursor) -> tuple[int, int, str, str, tuple[int, ...], int]:
    """A tensor's offset from where the tensors' bytes begin, its bytes, name, type, shape and elements."""
    name = cursor.text("a tensor's name")
    dimensions = cursor.number("I")
    if dimensions > MOST_DIMENSIONS:
        raise cursor.refused(f"tensor {shown(name)} has {dimensions:,} dimensions; ggml's have at most {MOST_DIMENSIONS}")
    sizes = cursor.numbers("Q", dimensions)
    elements = 1
    for size in sizes:
        elements *= size
        if max(elements, size) >= MOST_ELEMENTS:
            raise cursor.refused(f"tensor {shown(name)} has 2^63 elements or more")
    number, offset = cursor.number("I"), cursor.number("Q")
    known = ggml_types()
    if number not in known:
        removed = f" ({ggml_removed()[number]}, which ggml has removed)" if number in ggml_removed() else ""
        names = ", ".join(f"{key} {block.name}" for key, block in known.items())
        raise cursor.refused(f"tensor {shown(name)} is of the unknown ggml type {number}{removed}; known are {names}")
    block = known[number]
    row = sizes[0] if sizes else 1
    if row % block.elements:
        stored = f"{block.name} stores {block.elements} at a time"
        raise cursor.refused(f"tensor {shown(name)} has rows of {row:,} elements, but {stored}")
    nbytes = elements // block.elements * block.nbytes
    return offset, nbytes, name, block.name, sizes[::-1], elements


def _in_place(
    described: list[tuple[int, int, str, str, tuple[int, ...], int]], start: int, alignment: int, cursor: Cursor
) -> tuple[Tensor, ...]:
    """The tensors in the order of their bytes, each of which follows the one before at the next multiple of the alignment.

    What comes after the last tensor is not looked at, as in ggml.
    """
    end, before, file = 0, "", cursor.path.name
    placed: dict[str, Tensor] = {}
    for offset, nbytes, name, dtype, shape, elements in sorted(described):
        if name in placed:
            raise cursor.refused(f"there are two tensors {shown(name)}")
        expected = _padded(end, alignment)
        if offset != expected:
            where = f"at byte {offset:,} of the data, not at {expected:,}"
            after = f"where {shown(before)} ends" if placed else "where the data begin"
            raise cursor.refused(f"tensor {shown(name)} begins {where}, {after}, aligned to {alignment:,}")
        end, before = offset + nbytes, name
        placed[name] = Tensor(name, dtype, shape, elements, nbytes, file, start + offset)
    if placed and start + end > cursor.size:
        message = f"is truncated: its tensors end at byte {start + end:,}, the file at {cursor.size:,}"
        raise cursor.refused(f"{message}; download it again")
    return tuple(placed.values())


def _padded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
