"""Weight files put together by hand, and how a broken one is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from estimator.contract.errors import InvalidJob
from estimator.weights.read import read_checkpoint
from tests.weight_files import (
    INT32,
    LLAMA,
    UINT16,
    Pair,
    gguf_bytes,
    info,
    text,
    written,
)


def refused(path: Path, message: str) -> None:
    with pytest.raises(InvalidJob) as error:
        read_checkpoint(path)
    assert message in str(error.value)
    assert error.value.where.startswith(str(path.parent))
    assert len(str(error.value)) < 1000
    str(error.value).encode()


def gguf(pairs: bytes = b"", tensors: bytes = b"", count: tuple[int, int] = (0, 0), version: int = 3) -> bytes:
    """A GGUF file put together by hand: the counts are of tensors and of pairs."""
    return b"GGUF" + struct.pack("<IQQ", version, *count) + pairs + tensors + bytes(64)


def pair(kind: int, value: bytes, key: str = "k") -> bytes:
    """A GGUF file of one entry of metadata."""
    return gguf(text(key) + struct.pack("<I", kind) + value, count=(0, 1))


def one(name: str, kind: int, sizes: tuple[int, ...], offset: int = 0) -> bytes:
    """A GGUF file of one tensor."""
    return gguf(tensors=info(name, kind, sizes, offset), count=(1, 0))


def part(folder: Path, number: int, count: int, tensors: int = 3, name: str = "m", no: int | None = None, own: str = "") -> Path:
    pairs: list[Pair] = LLAMA if number == 1 else []
    split: list[Pair] = [("split.no", UINT16, number - 1 if no is None else no), ("split.count", UINT16, count)]
    split += [("split.tensors.count", INT32, tensors)]
    path = folder / f"{name}-{number:05}-of-{count:05}.gguf"
    return written(path, gguf_bytes([*pairs, *split], [(f"{own or number}.weight", "F16", (64,))]))
