"""A timeline as a trace of events, which chrome://tracing and Perfetto open: a counter a component, phases and layers.

The format is Chrome's Trace Event Format (a JSON object with `traceEvents`); its microseconds are numbers of events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from estimator.tape.tape import COMPONENTS
from estimator.timelines.timeline import Recorded

PROCESS, PHASES, LAYERS = 1, 1, 2


def chrome(step: Recorded) -> str:
    """The trace as JSON text: one event a line."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in _events(step))
    said = json.dumps({"unit": "microseconds are numbers of events", "model": str(step.run.job.model)}, ensure_ascii=False)
    return f'{{"displayTimeUnit": "ms", "otherData": {said},\n"traceEvents": [\n{lines}\n]}}\n'


def _events(step: Recorded) -> Iterator[dict[str, Any]]:
    yield _said("process_name", PHASES, "live bytes over a step")
    yield _said("thread_name", PHASES, "phases")
    yield _said("thread_name", LAYERS, "layers")
    for span in step.spans:
        yield _stay(span.name, PHASES, span.start, span.stop)
    yield from _layers(step)
    tape, births, first = step.course.tape, step.course.births, step.first
    now = dict.fromkeys(COMPONENTS, 0)
    for number, event in enumerate(step.course.events):
        name = tape.components[births[abs(event) - 1].storage]
        now[name] += step.course.size(event)
        if number == first - 1:
            for component, size in now.items():
                yield _counter(component, 0, size)
            yield _counter("allocated", 0, step.live[number])
        if number >= first:
            yield _counter(name, number - first + 1, now[name])
            yield _counter("allocated", number - first + 1, step.live[number])
    at = step.peak - first + 1
    peak = step.live[step.peak]
    yield {"ph": "i", "name": f"peak: {peak:,} bytes", "ts": at, "pid": PROCESS, "tid": PHASES, "s": "p"}


def _layers(step: Recorded) -> Iterator[dict[str, Any]]:
    """Stays in layers, as the tensors that are allocated show them."""
    tape, births, first = step.course.tape, step.course.births, step.first
    for span in step.spans:
        label, since = "", span.start
        for number in range(span.start + first, span.stop + first):
            event = step.course.events[number]
            if event < 0:
                continue
            birth = births[event - 1]
            slot = tape.slots[birth.storage]
            here = f"{slot.stack.label}[{birth.layer}]" if slot is not None and slot.stack is not None else ""
            if here != label:
                if label:
                    yield _stay(label, LAYERS, since, number - first)
                label, since = here, number - first
        if label:
            yield _stay(label, LAYERS, since, span.stop)


def _said(name: str, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "args": {"name": text}}


def _stay(name: str, thread: int, start: int, stop: int) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": start, "dur": stop - start, "pid": PROCESS, "tid": thread}


def _counter(name: str, at: int, size: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, "ts": at, "pid": PROCESS, "args": {"bytes": size}}
