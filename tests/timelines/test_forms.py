"""A timeline in each of its forms: as a picture, as a trace of events, and as a memory snapshot of torch."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import app
from estimator import InvalidJob, timeline
from estimator.cli.main import main
from estimator.contract.units import gib
from estimator.timelines.chrome import chrome
from estimator.timelines.picture import svg
from estimator.timelines.snapshot import contents, snapshot
from estimator.timelines.timeline import Recorded, record, timeline_of
from tests.jobs import ROOT

JOBS: dict[str, dict[str, Any]] = {
    "full": {"model": "gpt2", "hardware": {"gpu": "t4"}, "training": {"sequence_length": 256}},
    "80 layers": {"model": "llama-3.1-70b", "hardware": {"gpu": "h100", "gpus": 8}, "training": {"precision": "bf16-true"}},
    "foreach": {"model": "gpt2", "training": {"optimizer_implementation": "foreach", "gradient_accumulation_steps": 4}},
    "serving": {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"engine": "vllm"}},
}
MOST_SVG = 300_000
VIEWER = {
    *("PROTO", "FRAME", "MEMOIZE", "STOP", "MARK", "NONE", "NEWFALSE", "NEWTRUE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"),
}
"""What the viewer's own reader of pickles knows (`unpickle` in torch/utils/viz/MemoryViz.js)."""
client = TestClient(app)


@pytest.fixture(scope="module", params=JOBS)
def step(request: pytest.FixtureRequest) -> Recorded:
    return record(JOBS[request.param])


def test_the_picture_is_small_and_says_the_peak(step: Recorded) -> None:
    found = timeline_of(step)
    text = svg(found)
    assert len(text.encode()) < MOST_SVG
    root = ET.fromstring(text)
    assert f"({found.peak.bytes:,} bytes)" in "".join(root.itertext())
    drawn = {node.get("class") for node in root.iter("{http://www.w3.org/2000/svg}path")}
    assert drawn >= found.points.components.keys()
    said = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")]
    at = found.points.events.index(found.peak.event)
    assert any(f": {found.points.names[at]}\n{gib(found.peak.bytes)} alive\n" in text for text in said)


def test_the_trace_counts_what_is_alive(step: Recorded) -> None:
    events = json.loads(chrome(step))["traceEvents"]
    now: dict[str, int] = {}
    highest = 0
    for event in events:
        if event["ph"] == "C":
            now[event["name"]] = event["args"]["bytes"]
            if event["name"] == "allocated" and event["ts"]:
                assert sum(size for name, size in now.items() if name != "allocated") == now["allocated"]
            highest = max(highest, now.get("allocated", 0))
    assert highest == step.live[step.peak]
    assert [event["name"] for event in events if event["ph"] == "i"] == [f"peak: {highest:,} bytes"]
    spans = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert [span["name"] for span in spans] == [span.name for span in step.spans]


def test_the_snapshot_is_of_one_allocator(step: Recorded) -> None:
    """No two blocks in use overlap, each lies in a segment that was taken, and what is left is what is alive after the step."""
    found = contents(step)
    (trace,) = found["device_traces"]
    alive: dict[int, int] = {}
    reserved = live = highest = 0
    for entry in trace:
        if entry["action"] == "segment_alloc":
            reserved += entry["size"]
        elif entry["action"] == "alloc":
            assert entry["addr"] not in alive
            alive[entry["addr"]] = entry["size"]
            live += entry["size"]
        elif entry["action"] == "free_completed":
            assert alive.pop(entry["addr"]) == entry["size"]
            live -= entry["size"]
        highest = max(highest, live)
        assert live <= reserved
    assert highest == step.live[step.peak]
    assert live == step.live[-1]
    segments = sorted(found["segments"], key=lambda one: one["address"])
    assert sum(one["total_size"] for one in segments) == reserved
    for one, after in pairwise(segments):
        assert one["address"] + one["total_size"] <= after["address"]
    blocks = {block["address"]: block for one in segments for block in one["blocks"]}
    in_use = {at: block["requested_size"] for at, block in blocks.items() if block["state"] == "active_allocated"}
    assert in_use == alive
    for one in segments:
        assert sum(block["size"] for block in one["blocks"]) == one["total_size"]


def test_the_snapshot_is_plain_and_what_the_viewer_reads(step: Recorded) -> None:
    data = snapshot(step)
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= VIEWER
    assert pickle.loads(data) == contents(step)


def test_each_door_gives_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = JOBS["full"]
    expected = timeline(job, tensors=7)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    drawn, traced, pickled = (tmp_path / name for name in ("a.svg", "a.json", "a.pickle"))
    files = ["--svg", str(drawn), "--chrome", str(traced), "--snapshot", str(pickled)]
    assert main(["timeline", str(path), "--json", "--tensors", "7", *files]) == 0
    assert capsys.readouterr().out == expected.to_json()
    assert client.post("/v1/timeline?tensors=7", json=job).text == expected.to_json()
    asked: dict[str, str | int] = {"model": "gpt2", "on": "t4", "training.sequence_length": 256, "tensors": 7}
    assert client.get("/v1/timeline", params=asked).text == expected.to_json()
    for form, file in (("svg", drawn), ("chrome", traced), ("snapshot", pickled)):
        assert client.post(f"/v1/timeline?tensors=7&as={form}", json=job).content == file.read_bytes()
    assert len(expected.tensors) == 7
    assert expected.tensors_left_out > 0
    assert main(["timeline", str(path), "--on", "2x24GB"]) == 0
    assert "at the peak" in capsys.readouterr().out


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidJob, match="0 to 1000000"):
        timeline({"model": "gpt2"}, tensors=-1)
    example = str(ROOT / "docs" / "examples" / "qlora.yaml")
    assert main(["timeline", example, "--svg", str(tmp_path / "no" / "a.svg")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert client.post("/v1/timeline?as=gif", json={"model": "gpt2"}).status_code == 422
    assert client.post("/v1/timeline", json={"model": "llama-2-31b"}).status_code == 404


def test_a_job_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"model: gpt2\n")))
    assert main(["timeline", "-", "--json"]) == 0
    assert capsys.readouterr().out == timeline({"model": "gpt2"}).to_json()
