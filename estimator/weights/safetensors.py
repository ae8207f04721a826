"""The header of a .safetensors file: eight bytes that give its length, JSON, and then the tensors' bytes, which are not read.

After the format's description and its reader (huggingface/safetensors 0.8: README.md, "Format"; src/tensor.rs,
`read_metadata` and `validate`). What that reader refuses is refused here; names that come twice are too, as the description asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

from estimator.contract.errors import InvalidJob, Unreadable
from estimator.facts.spelling import shown
from estimator.weights.checkpoint import Checkpoint, Tensor
from estimator.weights.dtypes import safetensors_bits
from estimator.weights.files import MOST_ELEMENTS, MOST_HEADER_BYTES, json_object, opened

PREFIX_BYTES = 8
METADATA = "__metadata__"
AGAIN = "download it again"


def read_safetensors(path: Path) -> Checkpoint:
    """What a .safetensors file holds; only its header is read. `InvalidJob` says what is wrong with a file that is broken."""
    with opened(path) as (file, size):
        prefix = file.read(PREFIX_BYTES)
        if not prefix:
            raise Unreadable(f"is empty; {AGAIN}", str(path))
        if len(prefix) < PREFIX_BYTES:
            raise Unreadable(f"ends after {len(prefix)} bytes, before its header's length; {AGAIN}", str(path))
        length = int.from_bytes(prefix, "little")
        if length > MOST_HEADER_BYTES:
            most = f"the format allows {MOST_HEADER_BYTES:,}"
            raise Unreadable(f"claims a header of {length:,} bytes, but {most}; give a .safetensors file", str(path))
        header = file.read(min(length, max(size - PREFIX_BYTES, 0)))
    if len(header) < length:
        raise Unreadable(f"ends at byte {PREFIX_BYTES + len(header):,}, within its header ({length:,} bytes); {AGAIN}", str(path))
    if not header.startswith(b"{"):
        raise Unreadable("its header does not begin with '{' (byte 8); give a .safetensors file", str(path))
    entries = json_object(header, path, "its header")
    metadata = _metadata(entries.pop(METADATA, None), path)
    start, name = PREFIX_BYTES + length, path.name
    tensors = [_tensor(tensor, entry, start, name, path) for tensor, entry in entries.items()]
    return Checkpoint(str(path), "safetensors", _in_place(tensors, start, size, path), metadata, (name,))


def _metadata(given: Any, path: Path) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise Unreadable(f"{METADATA} is not a mapping of strings to strings", str(path))
    return given


def _tensor(name: str, entry: Any, start: int, file: str, path: Path) -> Tensor:
    """One entry of the header of a file whose tensors' bytes begin at `start`."""

    def refused(why: str) -> InvalidJob:
        return InvalidJob(f"tensor {shown(name)} {why}", str(path))

    if not isinstance(entry, dict):
        raise refused("is not described by a JSON object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    known = safetensors_bits()
    if not isinstance(dtype, str):
        raise refused(f"has no dtype; it is one of {', '.join(known)}")
    if dtype not in known:
        raise refused(f"has the unknown dtype {shown(dtype)}; known are {', '.join(known)}")
    if not _sizes(shape):
        raise refused("has no shape; it is a list of whole numbers from 0")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refused("has no data_offsets; they are two whole numbers, where its bytes begin and where they end")
    elements = 1
    for size in shape:
        elements *= size
        if elements >= MOST_ELEMENTS:
            raise refused("has 2^63 elements or more")
    nbytes, spare = divmod(elements * known[dtype], 8)
    if spare:
        raise refused(f"has {elements:,} elements of {known[dtype]} bits, which are no whole number of bytes")
    if offsets[1] - offsets[0] != nbytes:
        wanted = f"{elements:,} elements of {dtype} are {nbytes:,} bytes"
        raise refused(f"has data_offsets {offsets[0]:,} to {offsets[1]:,}, {offsets[1] - offsets[0]:,} bytes, but {wanted}")
    return Tensor(name, dtype, tuple(shape), elements, nbytes, file, start + offsets[0])


def _sizes(given: Any) -> TypeGuard[list[int]]:
    """Whether something is a list of sizes."""
    if not isinstance(given, list):
        return False
    for size in given:  # noqa: SIM110 - half the time of all()
        if type(size) is not int or not 0 <= size < MOST_ELEMENTS:
            return False
    return True


def _in_place(tensors: list[Tensor], start: int, size: int, path: Path) -> tuple[Tensor, ...]:
    """The tensors in the order of their bytes, which fill the file from byte `start` to its end: no overlap, no hole."""
    end, before, placed = start, "", sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes))
    for tensor in placed:
        if tensor.offset < end:
            within = f"within tensor {shown(before)}, at byte {tensor.offset - start:,} of the data"
            raise Unreadable(f"tensor {shown(tensor.name)} begins {within}; the format allows no overlaps", str(path))
        if tensor.offset > end:
            hole = f"bytes {end - start:,} to {tensor.offset - start:,} of its data"
            raise Unreadable(f"{hole} belong to no tensor; the format allows no holes", str(path))
        end, before = tensor.offset + tensor.nbytes, tensor.name
    if end > size:
        raise Unreadable(f"is truncated: its tensors end at byte {end:,}, the file at {size:,}; {AGAIN}", str(path))
    if end < size:
        raise Unreadable(f"has {size - end:,} bytes after its last tensor; the format allows none", str(path))
    return tuple(placed)
