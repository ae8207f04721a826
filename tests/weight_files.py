"""Weight files made in memory: what a writer of each format would write, well or badly."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from estimator.weights.checkpoint import Checkpoint, Tensor
from estimator.weights.dtypes import ggml_types

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
UINT8, UINT16, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY = 0, 2, 5, 4, 6, 7, 8, 9
TYPES = {block.name: number for number, block in ggml_types().items()}
Pair = tuple[str, int, Any]
"""A key of the metadata, its type's number, and its value: of an array the elements' type and the values."""
Info = tuple[str, str, Sequence[int]]
"""A tensor's name, type and dimensions as ggml has them, rows last."""
LLAMA: list[Pair] = [
    ("general.architecture", STRING, "llama"),
    ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "a", "é"])),
    ("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0, -1.0, 0.5])),
    ("general.tags", ARRAY, (ARRAY, [(STRING, ["x"]), (UINT8, [1, 2])])),
    ("llama.block_count", UINT32, 1),
    ("some.flags", ARRAY, (BOOL, [True, False])),
]
TENSORS: list[Info] = [("token_embd.weight", "Q4_K", (256, 3)), ("output_norm.weight", "F32", (256,)), ("blk.0.x", "F16", (5, 3))]
ENTRIES: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]},
    "none": {"dtype": "F8_E4M3", "shape": [0, 7], "data_offsets": [40, 40]},
}


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(encoded)) + encoded


def packed(kind: int, value: Any) -> bytes:
    """A GGUF value of a type."""
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(packed(inner, each) for each in values)
    return struct.pack(f"<{NUMBERS[kind]}", value)


def padding(nbytes: int, alignment: int) -> bytes:
    return bytes(-nbytes % alignment)


def tensor_bytes(kind: str, sizes: Sequence[int]) -> int:
    """By ggml's rule: whole blocks."""
    block = ggml_types()[TYPES[kind]]
    return math.prod(sizes) // block.elements * block.nbytes


def info(name: str, kind: int, sizes: Sequence[int], offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def gguf_header(pairs: Iterable[Pair] = LLAMA, tensors: Sequence[Info] = TENSORS, version: int = 3, alignment: int = 32) -> bytes:
    """The header of a GGUF file, padded to where its tensors' bytes begin."""
    pairs = [*pairs, *([("general.alignment", UINT32, alignment)] if alignment != 32 else [])]
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    out += b"".join(text(key) + struct.pack("<I", kind) + packed(kind, value) for key, kind, value in pairs)
    offset = 0
    for name, kind_name, sizes in tensors:
        out += info(name, TYPES[kind_name], sizes, offset)
        nbytes = tensor_bytes(kind_name, sizes)
        offset += nbytes + len(padding(nbytes, alignment))
    return out + padding(len(out), alignment)


def gguf_bytes(pairs: Iterable[Pair] = LLAMA, tensors: Sequence[Info] = TENSORS, version: int = 3, alignment: int = 32) -> bytes:
    """A whole GGUF file, its weights zeros."""
    sizes = [tensor_bytes(kind, shape) for _, kind, shape in tensors]
    data = b"".join(bytes(size) + padding(size, alignment) for size in sizes)
    return gguf_header(pairs, tensors, version, alignment) + data


def safetensors_bytes(entries: Any = ENTRIES, nbytes: int = 40, length: int | None = None) -> bytes:
    """A safetensors file of zeros: a header, as a mapping or as the text itself, before so many bytes of weights."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(nbytes)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def gguf_checkpoint(metadata: dict[str, Any], shapes: dict[str, Sequence[int]]) -> Checkpoint:
    """What reading a GGUF file of such metadata and such tensors would give, without a file as large."""

    def tensor(name: str, shape: Sequence[int]) -> Tensor:
        elements = math.prod(shape)
        return Tensor(name, "F16", tuple(shape), elements, 2 * elements, "model.gguf", 0)

    return Checkpoint("model.gguf", "gguf", tuple(tensor(*each) for each in shapes.items()), metadata, ("model.gguf",))
