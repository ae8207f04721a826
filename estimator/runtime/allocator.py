"""CUDA's caching allocator: what it takes from the driver for the allocations of a run.

c10/cuda/CUDACachingAllocator.cpp (torch 2.13), with its default settings. Up to 1 MiB comes from segments of 2 MiB, up to
10 MiB from segments of 20 MiB, and more from a segment of its own, rounded up to 2 MiB. A request takes the smallest free block
that holds it; what is left of a block stays free if it is large enough. Free neighbours merge. A segment stays with the
allocator, used or not, until the driver has nothing left: then all that are wholly free are given back.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 2**20
SMALL, SMALL_SEGMENT = MIB, 2 * MIB
LARGE, LARGE_SEGMENT = 10 * MIB, 20 * MIB
ROUNDING = 2 * MIB
SPLIT = MIB
"""Bytes that must be left of a large block for it to be split (`should_split`)."""


class Block:
    """Part of a segment."""

    __slots__ = ("after", "before", "free", "offset", "segment", "size")

    def __init__(self, segment: Segment, offset: int, size: int):
        self.segment, self.offset, self.size = segment, offset, size
        self.before: Block | None = None
        self.after: Block | None = None
        self.free = False


class Segment:
    """What was taken from the driver at once."""

    __slots__ = ("number", "size", "used")

    def __init__(self, number: int, size: int):
        self.number, self.size = number, size
        self.used = 0
        """Blocks of it that are not free."""


class CachingAllocator:
    """Blocks of more than 1 MiB one by one; smaller ones, which pack well, as a sum.

    `reserved` is what was taken from the driver; `held`, of it, the segments in use: what cannot be given back.
    """

    __slots__ = ("free", "held", "highest", "reserved", "segments", "small", "small_highest")

    def __init__(self) -> None:
        self.free: list[tuple[int, int, int, Block]] = []
        """Free blocks, smallest first: size, segment, offset."""
        self.segments = self.reserved = self.held = self.highest = self.small = self.small_highest = 0

    def malloc(self, size: int) -> Block | None:
        """A block for so many bytes; None for a small one."""
        if size <= SMALL:
            self.small += size
            if self.small > self.small_highest:
                self.small_highest = self.small
            return None
        free = self.free
        at = bisect_left(free, (size,))
        block = free.pop(at)[3] if at < len(free) else self._new(size)
        rest = block.size - size
        if rest > SPLIT:
            after = Block(block.segment, block.offset + size, rest)
            after.free, after.before, after.after = True, block, block.after
            if block.after is not None:
                block.after.before = after
            block.after, block.size = after, size
            insort(free, (rest, after.segment.number, after.offset, after))
        block.free = False
        segment = block.segment
        segment.used += 1
        if segment.used == 1:
            self.held += segment.size
            if self.held > self.highest:
                self.highest = self.held
        return block

    def _new(self, size: int) -> Block:
        taken = LARGE_SEGMENT if size < LARGE else -(-size // ROUNDING) * ROUNDING
        self.reserved += taken
        self.segments += 1
        return Block(Segment(self.segments, taken), 0, taken)

    def release(self, block: Block) -> None:
        """Free a block, and merge it with free neighbours."""
        segment, free = block.segment, self.free
        segment.used -= 1
        if not segment.used:
            self.held -= segment.size
        number = segment.number
        before, after = block.before, block.after
        if before is not None and before.free:
            del free[bisect_left(free, (before.size, number, before.offset))]
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            del free[bisect_left(free, (after.size, number, after.offset))]
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        block.free = True
        insort(free, (block.size, number, block.offset, block))


class ExpandableAllocator(CachingAllocator):
    """With `expandable_segments:True`: one segment, whose pages of 20 MiB are mapped as it grows.

    Free pages are unmapped when memory is short; what cannot be given back is counted here as the blocks in use.
    """

    __slots__ = ("only", "tail")

    def __init__(self) -> None:
        super().__init__()
        self.only = Segment(1, 0)
        self.tail: Block | None = None

    def malloc(self, size: int) -> Block | None:
        block = super().malloc(size)
        if block is not None:
            self.tail = self.tail or block
            while self.tail.after is not None:
                self.tail = self.tail.after
            self.held += block.size
            self.highest = max(self.highest, self.held)
        return block

    def release(self, block: Block) -> None:
        self.held -= block.size
        super().release(block)
        tail = self.tail
        while tail is not None and tail.before is not None and tail.before.after is not tail:
            tail = tail.before  # it was merged into the block before it
        self.tail = tail

    def _new(self, size: int) -> Block:
        tail = self.tail
        if tail is not None and tail.free:
            del self.free[bisect_left(self.free, (tail.size, 1, tail.offset))]
            grown = -(-(size - tail.size) // LARGE_SEGMENT) * LARGE_SEGMENT
            tail.size += grown
            block = tail
        else:
            grown = -(-size // LARGE_SEGMENT) * LARGE_SEGMENT
            block = Block(self.only, tail.offset + tail.size if tail else 0, grown)
            if tail is not None:
                tail.after, block.before = block, tail
            self.tail = block
        self.reserved += grown
        return block
