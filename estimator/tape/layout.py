"""Shapes and strides: which reshapes are views, which layout an element-wise result takes.

torch copies where a view is impossible, and a copy is bytes. Strides count elements. `None` stands for the contiguous
layout, by far the most frequent, so that the usual case costs nothing.
"""

from __future__ import annotations

from functools import lru_cache
from operator import index

Shape = tuple[int, ...]
Strides = Shape | None


def parts(length: int, size: int) -> list[int]:
    """Lengths of the parts of `size` that a `length` is cut into; the last is what is left. Only how many there are is decided
    here, so that of a length that varies (sweeps/sym.py) no more has to be fixed."""
    count = index(-(-length // size))
    return [*[size] * (count - 1), length - size * (count - 1)] if count else []


def contiguous(shape: Shape) -> Shape:
    """Row-major strides of `shape`."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size if size > 0 else 1
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def normalized(shape: Shape, strides: Shape) -> Strides:
    """`None` if the strides address `shape` row by row (dimensions of one element do not count), else the strides."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return strides
            step *= size
    return None


@lru_cache(maxsize=4096)
def is_dense(shape: Shape, strides: Strides) -> bool:
    """Whether every element of the storage is addressed once: torch's "non-overlapping and dense"."""
    if strides is None:
        return True
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != step:
            return False
        step *= size
    return True


@lru_cache(maxsize=4096)
def is_channels_last(shape: Shape, strides: Strides) -> bool:
    """Whether torch takes a tensor for images whose channels lie innermost (`is_channels_last_strides_2d`)."""
    if strides is None or len(shape) != 4:
        return False
    step = 0
    for dim in (1, 3, 2, 0):
        if strides[dim] < step or (dim == 0 and step == strides[1]):
            return False
        step = strides[dim] * max(shape[dim], 1)
    return True


def channels_last(shape: Shape) -> Shape:
    """Strides of [images, channels, height, width] with the channels innermost."""
    _, channels, height, width = shape
    return (channels * height * width, 1, width * channels, channels)


@lru_cache(maxsize=4096)
def viewed(shape: Shape, strides: Strides, new: Shape) -> tuple[bool, Strides]:
    """Whether `new` can be a view of the tensor, and its strides if so (torch's `computeStride`)."""
    if strides is None:
        return True, None
    result = [0] * len(new)
    at = len(new) - 1
    chunk_stride, chunk, filled = strides[-1], 1, 1
    for dim in range(len(shape) - 1, -1, -1):
        chunk *= shape[dim]
        if dim and (shape[dim - 1] == 1 or strides[dim - 1] == chunk * chunk_stride):
            continue
        while at >= 0 and (filled < chunk or new[at] == 1):
            result[at] = filled * chunk_stride
            filled *= new[at]
            at -= 1
        if filled != chunk:
            return False, None
        if dim:
            chunk_stride, chunk, filled = strides[dim - 1], 1, 1
    return at == -1, normalized(new, tuple(result))


def broadcast(a: Shape, b: Shape) -> Shape:
    """The common shape of two operands; `ValueError` if there is none."""
    if a == b:
        return a
    if len(a) < len(b):
        a, b = b, a
    offset = len(a) - len(b)
    merged = list(a)
    for i, size in enumerate(b, offset):
        if merged[i] == 1:
            merged[i] = size
        elif size not in (1, merged[i]):
            raise ValueError(f"shapes {a} and {b} do not broadcast")
    return tuple(merged)


@lru_cache(maxsize=4096)
def elementwise_strides(shape: Shape, operands: tuple[tuple[Shape, Strides], ...]) -> Strides:
    """The layout of an element-wise result: dimensions ordered as the operands' strides are (torch's `TensorIterator`)."""
    if all(strides is None for _, strides in operands):
        return None
    aligned = [_aligned(shape, own, strides) for own, strides in operands]
    order = list(range(len(shape) - 1, -1, -1))  # innermost first
    for i in range(1, len(shape)):
        here = i
        for before in range(i - 1, -1, -1):
            swap = _compare(order[before], order[here], shape, aligned)
            if swap > 0:
                order[before], order[here] = order[here], order[before]
                here = before
            elif swap < 0:
                break
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return normalized(shape, tuple(strides))


def _aligned(shape: Shape, own: Shape, strides: Strides) -> Shape:
    """An operand's strides on the result's dimensions; 0 where it is broadcast."""
    strides = contiguous(own) if strides is None else strides
    offset = len(shape) - len(own)
    return (0,) * offset + tuple(
        0 if size == 1 and shape[i] != 1 else stride for i, (size, stride) in enumerate(zip(own, strides, strict=True), offset)
    )


def _compare(inner: int, outer: int, shape: Shape, operands: list[Shape]) -> int:
    """1 if `inner` should come after `outer`, -1 if before, 0 if no operand says."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[inner] > shape[outer]:
            return 1
    return 0
