"""CUDA's caching allocator: what it takes from the driver for the allocations of a run.

c10/cuda/CUDACachingAllocator.cpp (torch 2.13), with its default settings. Up to 1 MiB comes from segments of 2 MiB, up to
10 MiB from segments of 20 MiB, and more from a segment of its own, rounded up to 2 MiB. A request takes the smallest free block
that holds it; what is left of a block stays free if it is large enough. Free neighbours merge. A segment stays with the
allocator, used or not, until the driver has nothing left: then all that are wholly free are given back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

Event = tuple[int, list[int], int]
"""Bytes of a block, negative where one is freed; the list at whose end it is put, or from which it is taken; and whether from its
`FIRST` place or its `LAST`. Nothing is freed where the list is empty."""
FIRST, LAST = 0, -1
MIB = 2**20
SMALL, SMALL_SEGMENT = MIB, 2 * MIB
LARGE, LARGE_SEGMENT = 10 * MIB, 20 * MIB
ROUNDING = 2 * MIB
SPLIT, SMALL_SPLIT = MIB, 511
"""A block is split if more bytes than these are left of it, of large ones and of small ones (`should_split`)."""
ADDRESS = 128
"""Bits of an address: more than any sizes that a job may have add up to."""


class CachingAllocator:
    """The pool of blocks above 1 MiB; a block is its address.

    `reserved` is what was taken from the driver; `highest` the most of it that was in segments in use: what cannot be given back.
    """

    __slots__ = ("ends", "free", "held", "highest", "reserved", "segments", "sizes", "top")
    split = SPLIT

    def __init__(self) -> None:
        self.free: list[int] = []
        """Free blocks, smallest and lowest first: size and address in one number."""
        self.sizes: dict[int, int] = {}
        """Bytes of every block, by its address; of a free one negative."""
        self.ends: dict[int, int] = {}
        """Addresses of free blocks, by that of their end."""
        self.segments: dict[int, int] = {}
        """Bytes of every segment, by its address."""
        self.reserved = self.held = self.highest = self.top = 0

    def malloc(self, size: int) -> int:
        """A block for so many bytes, more than `SMALL`."""
        free, sizes = self.free, self.sizes
        at = bisect_left(free, size << ADDRESS)
        if at < len(free):
            key = free.pop(at)
            has = key >> ADDRESS
            address = key - (has << ADDRESS)
            del self.ends[address + has]
            if self.segments.get(address) == has:
                self.held += has
        else:
            address, has = self._segment(size)
            self.held += has
        if self.held > self.highest:
            self.highest = self.held
        rest = has - size
        if rest > self.split:
            after = address + size
            sizes[after] = -rest
            self.ends[after + rest] = after
            insort(free, (rest << ADDRESS) + after)
            has = size
        sizes[address] = has
        return address

    def play(self, events: Iterable[Event]) -> None:
        """Allocate and free, in order."""
        for size, blocks, place in events:
            if size > 0:
                blocks.append(self.malloc(size))
            elif blocks:
                self.release(blocks.pop(place))

    def _segment(self, size: int) -> tuple[int, int]:
        """Address and bytes of a new segment, which touches no other."""
        taken = LARGE_SEGMENT if size < LARGE else -(-size // ROUNDING) * ROUNDING
        address = self.top
        self.top += taken + 1
        self.segments[address] = taken
        self.reserved += taken
        return address, taken

    def release(self, address: int) -> None:
        """Free a block, and merge it with free neighbours."""
        free, sizes, ends = self.free, self.sizes, self.ends
        size = sizes[address]
        end = address + size
        after = sizes.get(end, 0)
        if after < 0:
            del sizes[end], ends[end - after]
            del free[bisect_left(free, (-after << ADDRESS) + end)]
            size -= after
        before = ends.pop(address, None)
        if before is not None:
            had = -sizes[before]
            del sizes[address]
            del free[bisect_left(free, (had << ADDRESS) + before)]
            size += had
            address = before
        sizes[address] = -size
        ends[address + size] = address
        insort(free, (size << ADDRESS) + address)
        if self.segments.get(address) == size:
            self.held -= size


class SmallAllocator(CachingAllocator):
    """The pool of blocks of up to 1 MiB."""

    __slots__ = ()
    split = SMALL_SPLIT

    def _segment(self, size: int) -> tuple[int, int]:
        address = self.top
        self.top += SMALL_SEGMENT + 1
        self.segments[address] = SMALL_SEGMENT
        self.reserved += SMALL_SEGMENT
        return address, SMALL_SEGMENT


class ExpandableAllocator(CachingAllocator):
    """With `expandable_segments:True`: one segment, whose pages of 20 MiB are mapped as it grows.

    Free pages are unmapped when memory is short; what cannot be given back is counted here as the blocks in use.
    """

    __slots__ = ()

    def malloc(self, size: int) -> int:
        address = super().malloc(size)
        self.held += self.sizes[address]
        self.highest = max(self.highest, self.held)
        return address

    def release(self, address: int) -> None:
        self.held -= self.sizes[address]
        super().release(address)

    def _segment(self, size: int) -> tuple[int, int]:
        tail = self.ends.pop(self.top, self.top)
        had = self.top - tail
        if had:
            del self.free[bisect_left(self.free, (had << ADDRESS) + tail)]
        grown = -(-(size - had) // LARGE_SEGMENT) * LARGE_SEGMENT
        self.top += grown
        self.reserved += grown
        self.held -= had + grown
        return tail, had + grown
