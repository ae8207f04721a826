"""The index of a checkpoint's shards, model.safetensors.index.json: which tensor is in which file, and all their bytes.

After transformers' modeling_utils.py (5.23), which writes `metadata.total_size` and `weight_map` in `save_pretrained`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.facts.spelling import shown
from estimator.weights.checkpoint import Checkpoint, Tensor
from estimator.weights.files import MOST_HEADER_BYTES, json_object, opened
from estimator.weights.safetensors import read_safetensors

MOST_SHARDS = 99_999
"""Shards are numbered with five digits."""
INDEX = "give a checkpoint's model.safetensors.index.json"


def read_index(path: Path) -> Checkpoint:
    """What the shards beside an index hold; only their headers are read.

    Shards that are not there are `missing`: then parameters are unknown, and bytes are the `total_size` that the index gives.
    Where all are there, what they hold counts, whatever `total_size` says. Tensors that the index does not list count, too.
    """
    index = _content(path)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise Unreadable(f"has no weight_map from tensors to files; {INDEX}", str(path))
    listed: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        listed.setdefault(shard, set()).add(name)
    if len(listed) > MOST_SHARDS:
        raise Unreadable(f"names {len(listed):,} files, more than the {MOST_SHARDS:,} that shards can be", str(path))
    parts, missing = [], []
    for shard in sorted(listed):
        _beside(shard, path)
        if not os.path.exists(path.parent / shard):
            missing.append(shard)
            continue
        part = read_safetensors(path.parent / shard)
        absent = listed[shard].difference(tensor.name for tensor in part.tensors)
        if absent:
            raise Unreadable(f"{shard} lacks the tensor {shown(min(absent))}, which the index says it has", str(path))
        parts.append(part)
    return joined(path, parts, missing, _declared(index, path))


def joined(path: Path, parts: list[Checkpoint], missing: list[str], declared: int | None = None) -> Checkpoint:
    """The files of a model as one checkpoint. What the first of them says of itself comes before what the others say."""
    metadata = {key: value for part in reversed(parts) for key, value in part.metadata.items()}
    files = tuple(file for part in parts for file in part.files)
    kind = parts[0].format if parts else "safetensors"
    tensors = _once((tensor for part in parts for tensor in part.tensors), path)
    return Checkpoint(str(path), kind, tensors, metadata, files, tuple(missing), declared)


def _once(tensors: Iterable[Tensor], path: Path) -> tuple[Tensor, ...]:
    """Tensors of several files, none of which may be in two of them."""
    found: dict[str, Tensor] = {}
    for tensor in tensors:
        other = found.setdefault(tensor.name, tensor)
        if other is not tensor:
            raise Unreadable(f"tensor {shown(tensor.name)} is both in {other.file} and in {tensor.file}", str(path))
    return tuple(found.values())


def _content(path: Path) -> dict[str, Any]:
    with opened(path) as (file, size):
        if size > MOST_HEADER_BYTES:
            raise Unreadable(f"has {size:,} bytes, too many for an index (at most {MOST_HEADER_BYTES:,}); {INDEX}", str(path))
        return json_object(file.read(MOST_HEADER_BYTES), path, "the index")


def _beside(shard: str, path: Path) -> None:
    """Refuses a shard that is not a .safetensors file of the index's own folder."""
    if not shard.endswith(".safetensors"):
        raise Unreadable(f"names {shown(shard)}, which is no .safetensors file; save the model as safetensors", str(path))
    if not shard.isprintable() or any(mark in shard for mark in "/\\:"):
        raise Unreadable(f"names {shown(shard)}; shards are files in the index's own folder", str(path))


def _declared(index: dict[str, Any], path: Path) -> int | None:
    """`metadata.total_size` in bytes. Older releases wrote a float, as they gave a boolean an eighth of a byte."""
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int | float) or not math.isfinite(size) or size < 0:
        raise Unreadable(f"metadata.total_size is {shown(str(size))}; it is a number of bytes", str(path))
    return math.ceil(size)
