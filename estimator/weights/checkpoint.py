"""What the headers of weight files say, whichever format they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file.

    `dtype` is the format's own name of its type ("BF16", "Q4_K"). `shape` is in torch's order, the rows of a matrix first; GGUF
    files have it the other way round. Its bytes begin at `offset` of the file called `file`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    nbytes: int
    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of one file, or of all the files that a model was split into.

    `files` are the ones that were read, `missing` those that should be beside them and are not: then `tensors` are not all.
    `metadata` is what the files say besides: strings in safetensors, values of any kind in GGUF, arrays as tuples.
    `declared_bytes` is what an index of shards says of all their tensors; None without an index, or if it does not say.
    """

    path: str
    format: Literal["safetensors", "gguf"]
    tensors: tuple[Tensor, ...] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    files: tuple[str, ...]
    missing: tuple[str, ...] = ()
    declared_bytes: int | None = None

    @property
    def parameters(self) -> int | None:
        """Elements of all tensors; None where files are missing.

        It is what the files hold: weights that a model ties are counted as often as they are stored, and so are buffers.
        Types that pack several weights into one element (4-bit weights in bytes) count as they are stored, too.
        """
        return None if self.missing else sum(tensor.elements for tensor in self.tensors)

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all tensors, without headers and padding; where files are missing what the index says, or None."""
        return self.declared_bytes if self.missing else sum(tensor.nbytes for tensor in self.tensors)

    @property
    def summary(self) -> str:
        """What the weights hold, as a sentence."""
        if self.parameters is None:
            declared = "" if self.declared_bytes is None else f"; its index says {self.declared_bytes:,} bytes"
            return f"Its weights cannot be counted without {', '.join(self.missing[:3])}{declared}."
        types = ", ".join(self.bytes_by_dtype or ())
        return f"Its weights hold {self.parameters:,} numbers in {self.total_bytes:,} bytes ({types})."

    @property
    def bytes_by_dtype(self) -> dict[str, int] | None:
        """Bytes of the tensors of each type, most first; None where files are missing."""
        if self.missing:
            return None
        sizes: Counter[str] = Counter()
        for tensor in self.tensors:
            sizes[tensor.dtype] += tensor.nbytes
        return dict(sizes.most_common())
