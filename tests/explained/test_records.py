"""Records of measured memory are read, in the words of many programs; what is hostile or broken is refused, and nothing of it run."""

from __future__ import annotations

import pickle
from random import Random
from typing import Any

import pytest

from estimator import WillItFitError
from estimator.contract.units import GIB, MIB
from estimator.measured.pickled import plain
from estimator.measured.read import read_measured
from estimator.timelines.snapshot import snapshot
from estimator.timelines.timeline import record

MESSAGES: list[tuple[str, dict[str, float]]] = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.02 GiB "
        "is free. Including non-PyTorch memory, this process has 22.60 GiB memory in use. Of the allocated memory 21.30 GiB is allocated "
        "by PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 812.00 MiB is reserved by PyTorch but unallocated.",
        {"requested": 1.96, "capacity": 23.64, "free": 1.02, "used": 22.6, "allocated": 21.3, "pools": 46 / 1024},
    ),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 144.00 MiB (GPU 0; 31.75 GiB total capacity; 30.26 GiB already allocated; "
        "68.69 MiB free; 30.33 GiB reserved in total by PyTorch)",
        {"requested": 144 / 1024, "capacity": 31.75, "allocated": 30.26, "free": 68.69 / 1024, "reserved": 30.33},
    ),
    (
        "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; "
        "4.68 MiB cached)",
        {"requested": 12.5 / 1024, "capacity": 10.92, "allocated": 8.57 / 1024, "free": 9.28, "unallocated": 4.68 / 1024},
    ),
    (
        "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacty of 63.98 GiB of which 0 bytes "
        "is free. Process 33 has 15.51 GiB memory in use. Of the allocated memory 13.89 GiB is allocated by PyTorch, and 1.31 GiB is "
        "reserved by PyTorch but unallocated.",
        {"requested": 2, "capacity": 63.98, "free": 0, "used": 15.51, "allocated": 13.89, "unallocated": 1.31},
    ),
    (
        "RuntimeError: NPU out of memory. Tried to allocate 3.05 GiB (NPU 0; 60.97 GiB total capacity; 57.92 GiB already allocated; 57.92 GiB "
        "current active; 1.88 GiB free; 58.20 GiB reserved in total by PyTorch)",
        {"requested": 3.05, "capacity": 60.97, "allocated": 57.92, "free": 1.88, "reserved": 58.2},
    ),
    (
        "MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 1.06 GB, max allowed: 18.13 GB). Tried to allocate 500.00 MB "
        "on private pool.",
        {"requested": 500 / 1024, "allocated": 17, "capacity": 18.13},
    ),
]


@pytest.mark.parametrize(("text", "expected"), MESSAGES, ids=lambda one: str(one)[:40])
def test_messages(text: str, expected: dict[str, float]) -> None:
    found = read_measured(f"step 3\nTraceback (most recent call last):\n{text} See documentation for Memory Management\nmore")
    assert found.kind == "out of memory"
    for name, gibibytes in expected.items():
        one = found.amounts[name]
        assert abs(one.bytes - gibibytes * GIB) <= max(one.within, 1), name


LOGS: list[tuple[str, dict[str, int]]] = [
    ("|  Allocated memory      |   9886 MiB |  10937 MiB |     11 GiB |      1 GiB |", {"allocated": 10937 * MIB}),
    ("timestamp, memory.used [MiB], memory.total [MiB]\nx, 12345 MiB, 24564 MiB\nx, 12346 MiB, 24564 MiB", {"used": 12346 * MIB}),
    ("| N/A   30C    P0    25W / 250W |   5120MiB / 32768MiB |      0%      Default |", {"used": 5 * GIB}),
    ("{'loss': 1.0, 'memory/max_allocated (GiB)': 11.5}\n{'memory/max_allocated (GiB)': 12.5}", {"allocated": round(12.5 * GIB)}),
    ("[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0 | reserved: 3.0 | max reserved: 4096.0", {"allocated": 2 * GIB, "reserved": 4 * GIB}),
    ("MA 1.0 GB Max_MA 2.0 GB CA 3.0 GB Max_CA 4.0 GB", {"allocated": 2 * GIB, "reserved": 4 * GIB}),
    ("Memory used: 26.00 GB", {"allocated": 26 * 10**9}),
    ("Model loading took 14.50 GiB\nAvailable KV cache memory: 58.25 GiB", {"weights": round(14.5 * GIB), "cache": round(58.25 * GIB)}),
    ("Load weight end. type=A, avail mem=8.9 GB, mem usage=15.00 GB.\nKV Cache is allocated. #tokens: 9, K size: 2.00 GB, V size: 2.00 GB", {"weights": 15 * GIB, "cache": 4 * GIB}),
    ("load_tensors:  CUDA0 model buffer size =  2048.00 MiB\nllama_kv_cache:  CUDA0 KV buffer size = 1024.00 MiB", {"weights": 2 * GIB, "cache": GIB}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LOGS, ids=lambda one: str(one)[:40])
def test_logs(text: str, expected: dict[str, int]) -> None:
    found = read_measured(text)
    assert {name: found.amounts[name].bytes for name in expected} == expected


def test_a_snapshot_is_read_as_it_was_written() -> None:
    step = record({"model": "gpt2", "training": {"sequence_length": 256}})
    found = read_measured(snapshot(step))
    assert found.amounts["allocated"].bytes == max(step.live)
    assert found.alive is not None
    assert sum(size * count for size, count in found.alive.items()) == max(step.live)


HOSTILE: dict[str, bytes] = {
    "calls": b"\x80\x04cos\nsystem\n(X\x04\x00\x00\x00truetR.",
    "looks up": pickle.dumps(Random, protocol=4),
    "an object": pickle.dumps(ValueError("x"), protocol=4),
    "a far place in memory": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "bytes of any length": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "nothing on the stack": b"\x80\x04u.",
    "cut off": pickle.dumps({"a": list(range(1000))}, protocol=4)[:50],
    "other values": pickle.dumps({"segments": 3, "device_traces": "x"}, protocol=4),
    "negative sizes": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]]}, protocol=4),
    "no dictionary": pickle.dumps([1, 2], protocol=4),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(WillItFitError, match=r"\w"):
        read_measured(data)


def test_broken_snapshots_are_refused_or_read() -> None:
    whole = bytearray(snapshot(record({"model": "gpt2", "training": {"sequence_length": 64}})))[:20_000]
    draw = Random(24)
    for _ in range(30):
        broken = bytearray(whole)
        for _ in range(3):
            broken[draw.randrange(2, len(broken))] = draw.randrange(256)
        with pytest.raises(WillItFitError, match=r"\w"):
            read_measured(bytes(broken))


def test_plain_values_are_let_through() -> None:
    value = {"a": [1, -2, 2**40, 1.5, True, None, "x" * 300], "b": ((1, 2), (), (1,), (1, 2, 3, 4))}
    assert plain(pickle.dumps(value, protocol=4)) == value
