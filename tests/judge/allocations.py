"""What the CPU's allocator was asked for, as torch's profiler saw it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from tests.judge.host import LIFT, blocks


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
    events = sorted(_found(roots, names), key=lambda event: event.start_time_ns)
    of_host = {id(event): block.of_host for event, block in blocks([e for e in events if e.name not in names])}
    found: list[Lap] = []
    between: list[int] = []
    end = 0
    for event in events:
        if event.name in names:
            found.append(Lap(event.name, between, []))
            between, end = [], event.end_time_ns
        elif not of_host.get(id(event), True):
            (found[-1].within if event.start_time_ns < end else between).append(event.extra_fields.alloc_size)
    return found


def _found(events: list[Any], names: Sequence[str]) -> Iterator[Any]:
    """Allocations, the named runs and `LIFT`, wherever they are nested."""
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation or event.name in (*names, LIFT):
            yield event
