"""The caching allocator's large blocks once more, for the many of a whole run: by the rules of `CachingAllocator`, in less time.

A free block is one number, its size and its address, and lies in the tables under both of its ends; of a block in use nothing is
kept but what it is larger than was asked for. All is in one loop, since a call for each block would take longer than its place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from estimator.runtime.allocator import ADDRESS, LARGE, LARGE_SEGMENT, ROUNDING, SPLIT, Event

LOW = (1 << ADDRESS) - 1


class PlayedAllocator:
    """What `CachingAllocator.play` does. `take` is told of the bytes of each segment before it is there; `highest` is that of a
    `CachingAllocator`."""

    __slots__ = ("ends", "free", "held", "highest", "starts", "surplus", "take", "top", "whole")

    def __init__(self, take: Callable[[int], None]) -> None:
        self.take = take
        self.free: list[int] = []
        """Free blocks, smallest and lowest first: size and address in one number."""
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        """The same, by their address and by that of their end."""
        self.surplus: dict[int, int] = {}
        """Bytes by which a block in use is larger than was asked for, where it is, by its address."""
        self.whole: set[int] = set()
        """Each segment as it is among the free blocks when nothing of it is in use."""
        self.held = self.highest = self.top = 0

    def play(self, events: Iterable[Event]) -> None:
        """Allocate and free, in order."""
        free, starts, ends, surplus, whole = self.free, self.starts, self.ends, self.surplus, self.whole
        held, highest = self.held, self.highest
        for size, blocks, place in events:
            if size > 0:
                at = bisect_left(free, size << ADDRESS)
                if at < len(free):
                    key = free.pop(at)
                    address, has = key & LOW, key >> ADDRESS
                    del starts[address]
                    if key in whole:
                        held += has
                else:
                    address, has = self._segment(size)
                    held += has
                if held > highest:
                    highest = held
                rest = has - size
                if rest > SPLIT:
                    after = address + size
                    starts[after] = ends[after + rest] = key = (rest << ADDRESS) + after
                    insort(free, key)
                else:
                    ends.pop(address + has, None)
                    if rest:
                        surplus[address] = rest
                blocks.append(address)
            elif blocks:
                address = blocks.pop(place)
                size = surplus.pop(address) - size if address in surplus else -size
                end = address + size
                if end in starts:
                    key = starts.pop(end)
                    del free[bisect_left(free, key)]
                    end += key >> ADDRESS
                if address in ends:
                    key = ends.pop(address)
                    del free[bisect_left(free, key)]
                    address = key & LOW
                size = end - address
                starts[address] = ends[end] = key = (size << ADDRESS) + address
                insort(free, key)
                if key in whole:
                    held -= size
        self.held, self.highest = held, highest

    def _segment(self, size: int) -> tuple[int, int]:
        """Address and bytes of a new segment, which touches no other."""
        taken = LARGE_SEGMENT if size < LARGE else -(-size // ROUNDING) * ROUNDING
        self.take(taken)
        address = self.top
        self.top += taken + 1
        self.whole.add((taken << ADDRESS) + address)
        return address, taken

    def give_back(self) -> int:
        """Give the driver the segments that are wholly free; their bytes."""
        gone = [key for key in self.free if key in self.whole]
        self.free[:] = [key for key in self.free if key not in self.whole]
        self.whole.difference_update(gone)
        for key in gone:
            address, size = key & LOW, key >> ADDRESS
            del self.starts[address], self.ends[address + size]
        return sum(key >> ADDRESS for key in gone)
