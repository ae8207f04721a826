"""What a path to weights means: a file of one format or the other, the index of shards, or a folder with one of these."""

from __future__ import annotations

import os
from pathlib import Path

from estimator.contract.errors import Unreadable
from estimator.facts.spelling import shown
from estimator.weights.checkpoint import Checkpoint
from estimator.weights.files import MOST_HEADER_BYTES, opened, unreadable
from estimator.weights.gguf import MAGIC
from estimator.weights.index import read_index
from estimator.weights.safetensors import PREFIX_BYTES, read_safetensors
from estimator.weights.split import PART, read_gguf

INDEX_SUFFIX = ".safetensors.index.json"
FORMATS = "give a .safetensors file, a .safetensors.index.json or a .gguf file"
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
"""How the files of `torch.save` begin: a zip archive, or a bare pickle."""


def read_checkpoint(path: Path | str) -> Checkpoint:
    """The checkpoint that a path names: a .safetensors file, an index of shards, a GGUF file or part, or a folder with one.

    Only headers are read, whatever the size of the files. `InvalidJob` says what is wrong with a file, where, and what to give.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path = _only(path)
        elif not path.exists():
            raise Unreadable("there is no such file", str(path))
    except (OSError, ValueError) as error:
        raise unreadable(error, path) from None
    if path.suffix.lower() == ".json":
        return read_index(path)
    with opened(path) as (file, _):
        begin = file.read(PREFIX_BYTES + 1)
    if begin.startswith(MAGIC) or path.suffix.lower() == ".gguf":
        return read_gguf(path)
    if path.suffix.lower() == ".safetensors" or _like_safetensors(begin):
        return read_safetensors(path)
    if begin.startswith(PICKLES):
        raise Unreadable("looks like a file of torch.save, which is not read; save the model as safetensors", str(path))
    raise Unreadable(f"is neither safetensors nor GGUF; {FORMATS}", str(path))


def _like_safetensors(begin: bytes) -> bool:
    """Whether the first nine bytes could be those of a safetensors file, as blobs without a suffix have them."""
    return begin[PREFIX_BYTES:] == b"{" and int.from_bytes(begin[:PREFIX_BYTES], "little") <= MOST_HEADER_BYTES


def _only(folder: Path) -> Path:
    """The one checkpoint of a folder: an index, or a single file of either format, or the parts of one split file."""
    names = sorted(os.listdir(folder))
    tensors = [name for name in names if name.lower().endswith(".safetensors")]
    indices = [name for name in names if name.lower().endswith(INDEX_SUFFIX)]
    split = {(part["stem"], part["count"]): name for name in reversed(names) if (part := PART.fullmatch(name))}
    ggufs = [name for name in names if name.lower().endswith(".gguf") and not PART.fullmatch(name)] + sorted(split.values())
    found = (indices or tensors) + ggufs
    if len(found) == 1:
        return folder / found[0]
    if not found:
        raise Unreadable(f"is a folder without weights; {FORMATS}", str(folder))
    listed = ", ".join(shown(name) for name in found[:5]) + (", …" if len(found) > 5 else "")
    raise Unreadable(f"is a folder with {len(found)} checkpoints ({listed}); name one of them", str(folder))
