"""torch's own reader of snapshots takes ours (`torch.cuda._memory_viz`), and reads the bytes that the timeline has."""

from __future__ import annotations

import pickle
import re

from torch.cuda import _memory_viz

from estimator.timelines.snapshot import snapshot
from estimator.timelines.timeline import record


def test_torch_reads_the_snapshot() -> None:
    step = record({"model": "gpt2", "training": {"sequence_length": 256}})
    found = pickle.loads(snapshot(step))
    allocated = sum(one["allocated_size"] for one in found["segments"])
    assert "Summary of segments" in _memory_viz.segsum(found)
    lines = _memory_viz.trace(found).splitlines()
    assert int(re.findall(r"(\d+) entries", lines[1])[0]) == len(found["device_traces"][0])
    assert allocated >= step.live[-1]
    assert "MemoryViz.js" in _memory_viz.trace_plot(found)
