"""Records of measured memory are read, in the words of many programs; what is hostile is refused, and nothing of it run."""

from __future__ import annotations

import pickle
from random import Random
from typing import Any

import pytest

from estimator import WillItFitError
from estimator.contract.errors import Unreadable
from estimator.contract.units import GIB
from estimator.measured.pickled import plain
from estimator.measured.read import read_measured
from estimator.timelines.snapshot import snapshot
from estimator.timelines.timeline import record
from tests.jobs import table

RECORDS = table("memory_records")


@pytest.mark.parametrize("row", RECORDS["messages"], ids=lambda row: row["text"][:50])
def test_messages(row: dict[str, Any]) -> None:
    found = read_measured(f"step 3\nTraceback (most recent call last):\n{row['text']} See documentation for more\nmore")
    assert found.kind == "out of memory"
    for name, gibibytes in row["gib"].items():
        one = found.amounts[name]
        assert abs(one.bytes - gibibytes * GIB) <= max(one.within, 1), name


@pytest.mark.parametrize("row", RECORDS["logs"], ids=lambda row: row["text"][:50])
def test_logs(row: dict[str, Any]) -> None:
    found = read_measured(row["text"])
    assert {name: found.amounts[name].bytes for name in row["bytes"]} == row["bytes"]


@pytest.mark.parametrize("row", RECORDS["refusals"], ids=lambda row: row["text"][:50])
def test_refusals_of_engines(row: dict[str, Any]) -> None:
    found = read_measured(f"INFO starting\n{row['text']}\nmore")
    assert {name: one.bytes for name, one in found.amounts.items()} == row["bytes"]
    assert found.numbers == row["numbers"]


@pytest.mark.parametrize(
    "text", ["", "a\rb,c", f"memory.used [MiB]\n{'9' * 200_000}"], ids=["nothing", "carriage return", "long field"]
)
def test_what_is_no_table_has_no_figure(text: str) -> None:
    with pytest.raises(Unreadable, match="has no figure of memory that is known"):
        read_measured(text)


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
