"""Bytes that torch counts as allocated though nothing asked for them: what is left of a block, too little to be split off.

bitsandbytes quantizes each weight on the GPU: it copies the weight there in half precision, makes its scales and its packed form,
and lets go of the copy. Packed forms of later weights lie in blocks that such copies have left.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from estimator.runtime.allocator import Block, CachingAllocator
from estimator.training.quantization import BLOCK, SCALES_PER_BLOCK


class Counting:
    """The caching allocator, and how much larger its blocks are than what they were asked to hold."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self.left = 0

    def take(self, size: int) -> tuple[Block | None, int]:
        asked = -(-size // 512) * 512
        block = self.allocator.malloc(asked)
        self.left += block.size - asked if block else 0
        return block, asked

    def give(self, taken: tuple[Block | None, int]) -> None:
        block, asked = taken
        if block is None:
            self.allocator.small -= asked
        else:
            self.left -= block.size - asked
            self.allocator.release(block)


def left_of_blocks(weights: Iterable[tuple[int, ...]]) -> int:
    """After weights of these shapes were loaded in this order, those with two dimensions into nested 4-bit storage.

    bitsandbytes 0.43, functional.py, `quantize_4bit`.
    """
    memory = Counting()
    for shape in weights:
        numbers = prod(shape)
        copy = memory.take(2 * numbers)
        if len(shape) != 2:
            continue
        scales = memory.take(4 * -(-numbers // BLOCK))
        memory.take(-(-numbers // 2))
        memory.take(4 * -(-numbers // BLOCK // SCALES_PER_BLOCK))
        memory.take(-(-numbers // BLOCK))
        memory.give(scales)
        memory.give(copy)
    return memory.left


def santacoder() -> list[tuple[int, ...]]:
    """SantaCoder's weights in the order of a safetensors file, by name: layers, then embeddings, which stay as they are."""
    layer = ((2304, 2048), (2304,), (2048, 2048), (2048,), *[(2048,)] * 4, (8192, 2048), (8192,), (2048, 8192), (2048,))
    return [*layer * 24, (2048,), (2048,), (2048 * 2048,), (49280 * 2048,)]
