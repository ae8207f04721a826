"""What was measured is explained: records of a job that ran with another setting lead back to that setting."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import app
from estimator import WillItFitError, estimate, explain
from estimator.cli.main import main
from estimator.contract.units import GIB, MIB
from estimator.measured.oom import segment
from estimator.timelines.snapshot import snapshot
from estimator.timelines.timeline import record
from tests.explained.reports import asked as report
from tests.explained.reports import names, reports
from tests.jobs import merged

pytestmark = pytest.mark.slow

client = TestClient(app)
JOB: dict[str, Any] = {
    "model": "gpt2",
    "hardware": {"gpu": "t4"},
    "training": {"precision": "bf16-mixed", "sequence_length": 512, "micro_batch_size": 4, "activation_checkpointing": "full"},
}


def said(requested: int, allocated: int, capacity: float = 14.56) -> str:
    return (
        f"CUDA out of memory. Tried to allocate {requested / MIB:.2f} MiB. GPU 0 has a total capacity of {capacity} GiB of "
        f"which 0 bytes is free. Of the allocated memory {allocated / GIB:.3f} GiB is allocated by PyTorch, and 1.00 MiB is "
        "reserved by PyTorch but unallocated."
    )


def failing(job: dict[str, Any], tensor: str) -> tuple[str, int]:
    """The message of the highest allocation of an operation in a job, and its bytes."""
    step = record(job)
    course, sizes = step.course, step.course.tape.sizes
    alike = [one for one in course.births if course.tape.operations[one.storage] == tensor and one.born >= step.first]
    size = max(sizes[one.storage] for one in alike)
    highest = max((one for one in alike if sizes[one.storage] == size), key=lambda one: step.live[one.born])
    workspace = estimate(job).memory.overhead["cublas_workspaces"] // 2
    return said(segment(size), step.live[highest.born] - size + workspace), size


@pytest.mark.parametrize(("implementation", "named"), [("foreach", True), ("forloop", False)])
def test_the_second_list_of_an_older_foreach_step(implementation: str, named: bool) -> None:
    """It grows where the first one, of the same tensors, is held whole; a loop over parameters has no lists."""
    job = merged(JOB, {"training": {"optimizer": "adamw", "optimizer_implementation": "foreach"}})
    course = record(job).course
    roots = [one.storage for one in course.births if course.tape.operations[one.storage] == "_foreach_sqrt"]
    message, size = failing(job, "_foreach_sqrt")
    level = float(message.split("allocated memory ")[1].split(" GiB")[0]) * GIB
    first = sum(course.tape.sizes[storage] for storage in roots)
    asked = merged(job, {"training": {"optimizer_implementation": implementation}})
    found = explain(asked, said(segment(size), round(level) + first))
    older = [one for one in found.hypotheses if "torch before 2.1" in one.text]
    assert [one.explains for one in older] == ([True] if named else [])


@pytest.mark.parametrize("tensor", ["_log_softmax", "_log_softmax_backward_data", "embedding_dense_backward"])
def test_an_allocation_that_failed_is_found(tensor: str) -> None:
    message, size = failing(JOB, tensor)
    found = explain(JOB, message)
    assert found.verdict == "as predicted"
    assert found.culprit is not None
    assert found.culprit.bytes == size
    assert tensor in found.text or found.culprit.allocated_bytes  # another of that size may be as near
    assert found.changes


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("checkpointing-off", {"activation_checkpointing": "none"}),
    ("precision", {"precision": "32-true"}),
    ("evaluation", {"evaluation": {"micro_batch_size": 8, "keeps": "logits"}}),
    ("larger-batch", {"micro_batch_size": 8}),
    ("optimizer", {"optimizer": "adamw-8bit"}),
]


@pytest.mark.parametrize(("slug", "change"), SETTINGS, ids=[slug for slug, _ in SETTINGS])
def test_the_setting_that_differed_is_named(slug: str, change: dict[str, Any]) -> None:
    ran = estimate(merged(JOB, {"training": change})).memory.peak_bytes
    assert abs(ran / estimate(JOB).memory.peak_bytes - 1) > 0.02
    found = explain(JOB, f"max_memory_allocated: {ran}")
    assert found.verdict == "explained"
    assert slug in [one.slug for one in found.hypotheses if one.explains and abs(one.difference_bytes) <= 1]


def test_what_runs_as_written_is_as_predicted() -> None:
    memory = estimate(JOB).memory
    found = explain(JOB, f"{{'memory/max_allocated (GiB)': {memory.peak_bytes / GIB:.2f}}}")
    assert (found.verdict, found.hypotheses) == ("as predicted", [])


def test_nothing_explains_a_figure_out_of_the_world() -> None:
    found = explain(JOB, "max_memory_allocated: 700 GiB")
    assert found.verdict == "not explained"


def test_fragmentation_and_other_processes_are_read_off_the_record() -> None:
    memory = estimate(JOB).memory
    text = f"max_memory_allocated: {memory.peak_bytes}\nmax_memory_reserved: {2 * memory.peak_bytes}"
    assert [one.slug for one in explain(JOB, text).hypotheses] == ["fragmentation"]
    message = (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.56 GiB of which 10.00 MiB is free. "
    )
    message += "Process 7 has 12.00 GiB memory in use. Process 8 has 1.00 GiB memory in use. Including "
    message += (
        "non-PyTorch memory, this process has 1.50 GiB memory in use. Of the allocated memory 1.20 GiB is allocated by PyTorch."
    )
    found = explain(JOB, message, on="rtx-4090")
    assert "another-process" in [one.slug for one in found.hypotheses]
    assert found.text.endswith("; the record is of a GPU of 14.6 GiB, the job's has 23.6 GiB")


def test_a_snapshot_is_compared_tensor_by_tensor() -> None:
    same = explain(JOB, snapshot(record(JOB)))
    assert (same.verdict, same.sizes) == ("as predicted", [])
    other = explain(JOB, snapshot(record(merged(JOB, {"training": {"activation_checkpointing": "none"}}))))
    assert other.verdict == "explained"
    assert other.hypotheses[0].slug == "checkpointing-off"
    assert other.sizes
    for row in other.sizes:
        assert row.measured != row.predicted


def test_an_engine_s_log_is_lined_up() -> None:
    job = {"model": "llama-3.1-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"engine": "vllm"}}
    engine = estimate(job).memory.engine
    assert engine is not None
    text = f"INFO Model loading took {engine.weights_bytes / GIB:.2f} GiB and 3 seconds\nAvailable KV cache memory: 20.00 GiB\n"
    found = explain(job, text)
    assert {row.quantity: row.predicted for row in found.rows} == {"weights": engine.weights_bytes, "cache": engine.cache_bytes}
    assert found.compared == "cache"


def test_every_door_gives_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "max_memory_allocated: 3.0 GiB"
    expected = explain(JOB, text).to_json()
    job, measured = tmp_path / "job.json", tmp_path / "log.txt"
    job.write_text(json.dumps(JOB), encoding="utf-8")
    measured.write_text(text, encoding="utf-8")
    assert main(["explain", str(job), "--measured", str(measured), "--json"]) == 0
    assert capsys.readouterr().out == expected
    assert client.post("/v1/explain", json={"job": JOB, "measured": text}).text == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"max_memory_allocated: 700 GiB")))
    assert main(["explain", str(job), "--measured", "-", "--check"]) == 1
    assert capsys.readouterr().out.startswith("NOT EXPLAINED")
    assert main(["explain", "-", "--measured", "-"]) == 2


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WillItFitError, match="no figure of memory"):
        explain(JOB, "all is well")
    with pytest.raises(WillItFitError, match="cannot be read"):
        explain(JOB, tmp_path / "nowhere")
    assert client.post("/v1/explain", json={"job": JOB}).status_code == 422


def test_a_cache_that_llamacpp_could_not_allocate_names_the_context() -> None:
    job = {"model": "llama-3.1-8b", "task": "serve", "hardware": {"gpu": "rtx-4090"}}
    job |= {"serving": {"engine": "llama.cpp", "weights": "q4_k_m", "context": 4096}}
    mib = 131072 * 32 * 2 * 8 * 128 * 2 // MIB  # tokens, layers, keys and values, heads, their width, bytes of float16
    lines = (
        f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {mib}.00 MiB on device 0: cudaMalloc failed: out of memory",
        "llama_kv_cache_init: failed to allocate buffer for kv cache",
    )
    found = explain(job, "\n".join(lines))
    assert found.compared == "cache"
    best = found.hypotheses[0]
    assert (best.slug, best.change, best.explains) == ("longer-context", {"serving": {"context": 131072}}, True)


REFUSED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("vllm", "warming up sampler with 512 dummy requests", "sampler", {}),
    (
        "vllm",
        "Free memory on device cuda:0 (4.0/79.2 GiB) on startup is less than desired GPU memory utilization",
        "another-process",
        {},
    ),
    ("vllm", "No available memory for the cache blocks. Try increasing", "another-process", {}),
    ("sglang", "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.2", "share", {}),
    (
        "vllm",
        "The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (4096)",
        "context",
        {"serving": {"context": 4096}},
    ),
]


@pytest.mark.parametrize(("engine", "text", "slug", "change"), REFUSED, ids=[one[1][:20] for one in REFUSED])
def test_what_an_engine_says_itself_is_the_reason(engine: str, text: str, slug: str, change: dict[str, Any]) -> None:
    job = {"model": "qwen3-0.6b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"engine": engine}}
    found = explain(job, text)
    best = found.hypotheses[0]
    assert (best.slug, best.change, best.explains) == (slug, change, True)
    assert best.text in found.text


def test_an_engine_whose_weights_are_too_large_is_told_so() -> None:
    job = {"model": "llama-3-70b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"engine": "vllm"}}
    found = explain(job, said(160 * MIB, 78 * GIB, 79.2))
    assert found.hypotheses[0].slug == "too-large"


@pytest.mark.share(3)
@pytest.mark.parametrize("row", reports(), ids=lambda row: row["name"])
def test_public_reports(row: dict[str, Any]) -> None:
    """What is recorded of each, right or wrong."""
    assert names(row, report(row)) is row["named"]
