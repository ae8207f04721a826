"""What the CPU's allocator was asked for, as torch's profiler saw it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from tests.judge.host import blocks


@dataclass(frozen=True, slots=True)
class Lap:
    """One run of a `record_function`: bytes born, negative if freed, since the lap before it, and within it.

    Without what would lie in the host's memory.
    """

    name: str
    between: list[int]
    within: list[int]


def watching() -> profile:
    """A profiler that sees every allocation. Of a block that was born before, it does not report the end."""
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True)


def laps(watched: profile, names: Sequence[str]) -> list[Lap]:
    """Every run of a `record_function` of these names, in order."""
    profiler: Any = watched.profiler
    roots = profiler.kineto_results.experimental_event_tree()
    events = sorted(_all(roots), key=lambda event: event.start_time_ns)
    block_of = blocks(events)
    found: list[Lap] = []
    between: list[int] = []
    end = 0
    for event in events:
        if event.name in names:
            found.append(Lap(event.name, between, []))
            between, end = [], event.end_time_ns
        elif event.tag == _EventType.Allocation and not block_of[id(event)].of_host:
            (found[-1].within if event.start_time_ns < end else between).append(event.extra_fields.alloc_size)
    return found


def _all(events: list[Any]) -> Iterator[Any]:
    """Events, wherever they are nested."""
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        yield event
