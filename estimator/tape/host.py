"""The host's memory, on a tape of its own: what one rank keeps outside its GPU.

A tensor lies where its tape is, so what is made on `tape.host` takes nothing of the GPU. The two tapes go through the same
phases and slots.
"""

from __future__ import annotations

from math import prod

from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import Storage, Tape
from estimator.tape.tensor import Tensor

ALIGNMENT = 64
"""Bytes that torch aligns what it allocates on the host to (`gAlignment`, c10/core/alignment.h)."""


def with_host(tape: Tape) -> Tape:
    """The tape, with another for its host's memory; before its first phase."""
    tape.host = Tape(tape.gpu, ALIGNMENT)
    return tape


def pinned_bytes(nbytes: int) -> int:
    """Bytes of page-locked memory that torch takes for so many: the next power of two.

    aten/src/ATen/core/CachingHostAllocator.h, `CachingHostAllocatorImpl::allocate` (torch 2.13), with its default of no limit
    to the rounding (`pinned_max_round_threshold_mb`).
    """
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def pinned(host: Tape, shape: Shape, dtype: DType, operation: str) -> Tensor:
    """A new tensor in page-locked memory."""
    return Tensor(Storage(host, pinned_bytes(prod(shape) * dtype.itemsize), operation, (shape, dtype)), shape, dtype)
