"""Bytes that torch counts as allocated though nothing asked for them: what is left of a block, too little to be split off.

bitsandbytes quantizes each weight on the GPU: it copies the weight there in half precision, makes its scales and its packed form,
and lets go of the copy. Packed forms of later weights lie in blocks that such copies have left.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from estimator.quantization.layouts import BLOCK, SCALES_PER_BLOCK
from estimator.runtime.allocator import SMALL, CachingAllocator


class Counting:
    """The caching allocator, and how much larger its blocks are than what they were asked to hold."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self.left = 0

    def take(self, size: int) -> int | None:
        """A block for so many bytes; None for a small one, of which nothing is left."""
        asked = -(-size // 512) * 512
        if asked <= SMALL:
            return None
        block = self.allocator.malloc(asked)
        self.left += self.allocator.sizes[block] - asked
        return block

    def give(self, block: int | None, size: int) -> None:
        """Free the block that was taken for `size` bytes."""
        if block is not None:
            self.left -= self.allocator.sizes[block] - -(-size // 512) * 512
            self.allocator.release(block)


def left_of_blocks(weights: Iterable[tuple[int, ...]]) -> int:
    """After weights of these shapes were loaded in this order, those with two dimensions into nested 4-bit storage.

    bitsandbytes 0.43, functional.py, `quantize_4bit`.
    """
    memory = Counting()
    for shape in weights:
        numbers = prod(shape)
        half, per_block = 2 * numbers, 4 * -(-numbers // BLOCK)
        copy = memory.take(half)
        if len(shape) != 2:
            continue
        scales = memory.take(per_block)
        memory.take(-(-numbers // 2))
        memory.take(4 * -(-numbers // BLOCK // SCALES_PER_BLOCK))
        memory.take(-(-numbers // BLOCK))
        memory.give(scales, per_block)
        memory.give(copy, half)
    return memory.left


def santacoder() -> list[tuple[int, ...]]:
    """SantaCoder's weights in the order of a safetensors file, by name: layers, then embeddings, which stay as they are."""
    layer = ((2304, 2048), (2304,), (2048, 2048), (2048,), *[(2048,)] * 4, (8192, 2048), (8192,), (2048, 8192), (2048,))
    return [*layer * 24, (2048,), (2048,), (2048 * 2048,), (49280 * 2048,)]
