"""What memory-efficient attention puts aside in backward: gradients that it cannot sum in registers.

torch's CUTLASS kernels (aten/src/ATen/native/transformers/cuda/mem_eff_attention): a block of a kernel has so many rows of
queries and columns of keys, and takes heads up to a width. kernels/generate_kernels.py makes them for each architecture, and
attention_backward.cu takes the first that fits; kernel_backward.h says what it needs.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.tape import dtypes
from estimator.tape.dtypes import DType

LITTLE_SHARED_MEMORY = frozenset({(7, 5), (8, 6), (8, 9), (12, 0), (12, 1)})
"""Compute capabilities whose shared memory of 64 to 99 KiB holds no blocks of 128 rows (comments of generate_kernels.py)."""
UNLIMITED = 1 << 16
SPLITS = 200
"""Most parts that keys are split in, over all heads, where their gradients are put aside."""
LOCKS = 4
"""Numbers before each block of a query's gradient (`GradQTempStorage`)."""


class Tile(NamedTuple):
    """A kernel's block: rows of queries, columns of keys, and the widest head that it takes."""

    rows: int
    columns: int
    width: int


def tile(capability: tuple[int, int], half: bool, width: int) -> Tile:
    """The block of the kernel that runs on heads of `width` numbers."""
    if width <= 64:
        return Tile(64, 64, 32 if width <= 32 else 64)
    if half and capability in ((8, 6), (8, 9)) and width <= 96:
        return Tile(128, 64, 96)
    widest = 128 if width <= 128 else UNLIMITED
    many = capability not in LITTLE_SHARED_MEMORY and (capability >= (8, 0) or (capability >= (7, 0) and half))
    rows = 128 if many else 64
    preloads = half and capability >= (8, 0) and widest <= rows
    return Tile(rows, 128 if preloads else 64, widest)


def workspace_numbers(
    capability: tuple[int, int], dtype: DType, outer: tuple[int, int], lengths: tuple[int, int], sizes: tuple[int, int]
) -> tuple[int, bool]:
    """Float32 numbers per sequence and head, and whether the kernel itself sums gradient times result.

    `outer`: sequences and heads. `lengths`: of queries and keys. `sizes`: of a query's head and of a value's.
    """
    half = dtype is not dtypes.float32
    found = tile(capability, half, max(sizes))
    in_registers = half and found.width <= found.rows
    numbers = 0
    if half and not in_registers:
        parts = -(-lengths[1] // found.columns)
        if outer[0] * outer[1] >= 256 and lengths[1] <= 2 * found.columns:
            parts = 1
        parts = max(1, min(parts, SPLITS // (outer[0] * outer[1])))
        numbers += sum(parts * found.columns * (-(-size // found.rows) * found.rows) for size in sizes)
    if half or capability >= (7, 0):
        blocks = -(-lengths[0] // found.rows) * -(-sizes[0] // found.columns)
        numbers += blocks * (LOCKS + found.rows * found.columns)
    return -(-numbers // 4) * 4, half and (in_registers or not (7, 0) <= capability < (7, 5))
