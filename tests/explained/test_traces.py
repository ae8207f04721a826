"""Traces of torch's profiler are read: a real one, of a real training on the CPU, and broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from estimator import WillItFitError, estimate, explain
from estimator.measured.read import read_file, read_measured
from tests.watching.trained import JOB, SEQUENCES, TOKENS, model

ROOM = 512
"""Bytes to which a GPU's allocator rounds, and the CPU's does not."""


def trained(path: Path) -> None:
    """Two steps from nothing, recorded."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        one = model().train()
        optimizer = torch.optim.AdamW(one.parameters(), foreach=True)
        for _ in range(2):
            given = torch.randint(0, 1000, (SEQUENCES, TOKENS))
            loss = one(input_ids=given, labels=given).loss
            loss.backward()
            del loss, given
            optimizer.step()
            optimizer.zero_grad()
    recorded.export_chrome_trace(str(path))


def test_a_real_training_is_as_predicted(tmp_path: Path) -> None:
    """The peak of a real run's trace, and every large tensor alive there."""
    path = tmp_path / "trace.json"
    trained(path)
    record, memory = read_file(path), estimate(JOB).memory
    assert record.kind == "trace of torch's profiler"
    assert record.alive is not None
    tensors = sum(record.alive.values())
    assert abs(record.amounts["allocated"].bytes - memory.peak_bytes) <= tensors * ROOM
    found = explain(JOB, path)
    assert found.verdict == "as predicted"
    assert found.sizes == []
    other = {**JOB, "training": {**JOB["training"], "micro_batch_size": SEQUENCES // 2}}
    assert SEQUENCES * TOKENS * 1000 * 4 in [one.bytes for one in explain(other, path).sizes]  # the logits
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_file(packed) == record


def event(size: int, total: int, at: int, name: str = "[memory]", **more: Any) -> dict[str, Any]:
    told = {"Bytes": size, "Addr": at, "Device Type": 1, "Device Id": 0, "Total Allocated": total, "Total Reserved": 1 << 30}
    return {"ph": "i", "name": name, "ts": at, "args": {**told, **more}}


def test_of_devices_the_gpu_that_has_most() -> None:
    cpu: dict[str, Any] = {"Device Type": 0, "Device Id": -1}
    events = [event(9 << 30, 9 << 30, 1, **cpu), event(4096, 3 << 20, 2), event(-4096, (3 << 20) - 4096, 3), {"name": "aten::mm"}]
    found = read_measured(json.dumps({"traceEvents": events}))
    assert {name: one.bytes for name, one in found.amounts.items()} == {"allocated": 3 << 20, "reserved": 1 << 30}
    assert found.alive is None  # most was there before


def test_an_allocation_that_failed() -> None:
    events = [event(1 << 20, 1 << 20, 1), event(2 << 20, 1 << 20, 2, "[OutOfMemory]")]
    found = read_measured(json.dumps({"traceEvents": events}).encode())
    assert found.amounts["requested"].bytes == 2 << 20
    assert found.alive == {1 << 20: 1}


BROKEN: dict[str, bytes] = {
    "no memory": b'{"traceEvents": []}',
    "not a list": b'{"traceEvents": 3}',
    "cut off": b'{"traceEvents": [',
    "nested": b'{"traceEvents": ' + b"[" * 100_000,
    "an event that is none": b'{"traceEvents": [3]}',
    "no numbers": json.dumps({"traceEvents": [event(1, 1, 1, Bytes="x")]}).encode(),
    "no arguments": b'{"traceEvents": [{"name": "[memory]", "ts": 1}]}',
    "no gzip": b"\x1f\x8bno",
    "a bomb": gzip.compress(b"[" * (300 << 20), 9),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_traces_are_refused(data: bytes) -> None:
    with pytest.raises(WillItFitError, match=r"\w"):
        read_measured(data)
