"""A timeline as a memory snapshot of torch, which its viewer opens (pytorch.org/memory_viz, or `torch.cuda._memory_viz`).

The keys are those that `torch.cuda.memory._snapshot` returns (torch/cuda/memory.py, torch 2.13): `device_traces`, whose entries
allocate and free blocks, and `segments` with their blocks at the end. Addresses are those of `runtime/allocator.py`, into which
the step is replayed once: what is alive before it, then each event. Frames name the operation, its layer and its phase.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from estimator.runtime.allocator import SMALL, CachingAllocator, SmallAllocator
from estimator.timelines.course import Birth
from estimator.timelines.timeline import LOAD, Recorded

BASE = {"large": 0x7F00_0000_0000, "small": 0x7E00_0000_0000}
"""Where the segments of each pool begin."""


def snapshot(step: Recorded) -> bytes:
    """The snapshot, pickled: plain dictionaries, lists, texts and numbers."""
    return pickle.dumps(contents(step), protocol=4)


def contents(step: Recorded) -> dict[str, Any]:
    """The snapshot as torch returns it."""
    run = _Replayed(step)
    trace = list(run.trace())
    return {
        "segments": [segment for pool in run.pools.values() for segment in pool.state(run.held)],
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


class _Pool:
    """One of the allocator's pools; its segments lie one after the other from an address of their own on."""

    def __init__(self, kind: str):
        self.kind, self.base = kind, BASE[kind]
        self.blocks = SmallAllocator() if kind == "small" else CachingAllocator()
        self.starts: list[int] = []

    def allocate(self, size: int) -> tuple[int, int | None]:
        """A block, and the segment that was taken from the driver for it, if one was: as the allocator numbers them."""
        block = self.blocks.malloc(size)
        if len(self.blocks.segments) == len(self.starts):
            return block, None
        self.starts.append(next(reversed(self.blocks.segments)))
        return block, self.starts[-1]

    def address(self, block: int) -> int:
        """The allocator leaves one byte between segments; a driver's are aligned."""
        return self.base + block - (bisect_right(self.starts, block) - 1)

    def state(self, held: dict[tuple[str, int], tuple[int, list[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
        """The segments with their blocks; `held`: bytes asked for and frames of blocks in use."""
        for start, total in self.blocks.segments.items():
            blocks, used, at = [], 0, start
            while at < start + total:
                size = self.blocks.sizes[at]
                asked, frames = held.get((self.kind, at), (0, []))
                blocks.append(
                    {
                        "address": self.address(at),
                        "size": abs(size),
                        "requested_size": asked,
                        "state": "active_allocated" if size > 0 else "inactive",
                        "frames": frames,
                    }
                )
                used += max(size, 0)
                at += abs(size)
            yield {
                "device": 0,
                "address": self.address(start),
                "total_size": total,
                "allocated_size": used,
                "active_size": used,
                "requested_size": sum(block["requested_size"] for block in blocks),
                "stream": 0,
                "segment_type": self.kind,
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": blocks,
            }


class _Replayed:
    def __init__(self, step: Recorded):
        self.step = step
        self.pools = {kind: _Pool(kind) for kind in BASE}
        self.held: dict[tuple[str, int], tuple[int, list[dict[str, Any]]]] = {}
        self.time = 0

    def trace(self) -> Iterator[dict[str, Any]]:
        """What the allocator does, in order."""
        course, first = self.step.course, self.step.first
        where: dict[int, tuple[str, int]] = {}
        for number, event in enumerate(course.events):
            birth = course.births[abs(event) - 1]
            if number < first and birth.died is not None and birth.died < first:
                continue  # loading's own, which is gone before the step
            size = course.tape.sizes[birth.storage]
            if not size:
                continue
            if event > 0:
                pool = self.pools["small" if size <= SMALL else "large"]
                block, segment = pool.allocate(size)
                frames = self._frames(birth)
                where[event] = key = pool.kind, block
                self.held[key] = size, frames
                if segment is not None:
                    yield self._entry("segment_alloc", pool.address(segment), pool.blocks.segments[segment], frames)
                yield self._entry("alloc", pool.address(block), size, frames)
            else:
                kind, block = key = where.pop(-event)
                pool, (_, frames) = self.pools[kind], self.held.pop(key)
                address = pool.address(block)
                pool.blocks.release(block)
                yield self._entry("free_requested", address, size, frames)
                yield self._entry("free_completed", address, size, frames)

    def _entry(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
        self.time += 1
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time, "frames": frames}

    def _frames(self, birth: Birth) -> list[dict[str, Any]]:
        """The innermost first, as in a trace of Python's stack: what was made, its layer, its phase."""
        tape = self.step.course.tape
        slot = tape.slots[birth.storage]
        layer = f"{slot.stack.label}[{birth.layer}]" if slot is not None and slot.stack is not None else "outside the layers"
        phase = next((span.name for span in self.step.course.spans if span.start <= birth.born < span.stop), LOAD)
        again = " (recomputed)" if birth.recomputed else ""
        names = (tape.operations[birth.storage], f"{layer}{again}", phase, tape.components[birth.storage])
        return [{"filename": "willitfit", "line": depth, "name": name} for depth, name in enumerate(names)]
