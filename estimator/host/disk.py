"""Bytes of checkpoints on disk, by format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from estimator.host.weights import Saved
from estimator.weights.dtypes import safetensors_bits

NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "float32": "F32",
    "int64": "I64",
    "complex64": "C64",
}
"""safetensors' names of torch's types."""

PREFIX = 8
"""Bytes that say how long a header is; the header is padded with blanks to a multiple of as many."""
SHARD = 50 * 10**9
"""Bytes of one file's tensors at most (`max_shard_size` of transformers 5); a larger tensor has a file of its own."""


def safetensors_bytes(tensors: Sequence[Saved], metadata: dict[str, str] | None = None) -> int:
    """The size of a .safetensors file: 8 bytes, its header, the tensors.

    safetensors 0.8, src/tensor.rs, `prepare`: by type, the last of the format's list first, then by name; the header is JSON
    without blanks, padded.
    """
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    order = {name: -i for i, name in enumerate(safetensors_bits())}
    end = 0
    for t in sorted(tensors, key=lambda t: (order[NAMES[t.dtype.name]], t.name)):
        start, end = end, end + t.nbytes
        header[t.name] = {"dtype": NAMES[t.dtype.name], "shape": list(t.shape), "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return PREFIX + length + -length % PREFIX + end


def shards(tensors: Sequence[Saved], most: int = SHARD) -> list[list[Saved]]:
    """The files that transformers splits a model into: in order, each filled until the next tensor is too much.

    huggingface_hub/serialization/_base.py, `split_state_dict_into_shards_factory`.
    """
    files: list[list[Saved]] = [[]]
    alone, filled = [], 0
    for t in tensors:
        size = t.nbytes
        if size > most:
            alone.append([t])
            continue
        if files[-1] and filled + size > most:
            files.append([])
            filled = 0
        files[-1].append(t)
        filled += size
    return [file for file in (*alone, *files) if file]


def model_bytes(tensors: Sequence[Saved]) -> int:
    """All files of a saved model; the index of several, some 100 bytes per tensor, is left out."""
    return _model_bytes(tuple(tensors))


@lru_cache(maxsize=16)
def _model_bytes(tensors: tuple[Saved, ...]) -> int:
    return sum(safetensors_bytes(file, {"format": "pt"}) for file in shards(tensors))
