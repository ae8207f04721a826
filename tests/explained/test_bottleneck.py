"""What bounds a step: traces, tables and lines, real ones of the CPU among them, and what helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from estimator import bottleneck
from estimator.cli.main import main
from estimator.contract.errors import Unreadable
from estimator.measured.bottleneck import read_profile

JOB = {"model": "llama-3.2-1b", "hardware": {"gpu": "a100-80gb"}, "training": {"precision": "bf16-true", "sequence_length": 512}}


def event(name: str, start: float, length: float, kind: str = "kernel", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length, "pid": 0, "tid": 7, **more}


def traced(*events: dict[str, Any], steps: int = 1) -> str:
    marks = [event(f"ProfilerStep#{at}", 100 * at, 100, "user_annotation") for at in range(steps)]
    return json.dumps({"schemaVersion": 1, "traceEvents": [*marks, *events]})


GEMM, ADD = "sm90_xmma_gemm_bf16bf16_bf16f32_tn_n", "void at::native::vectorized_elementwise_kernel<4>"
NCCL = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"
TRACES = [
    (traced(event(GEMM, 0, 60), event(ADD, 60, 20)), {"compute": 0.6, "memory": 0.2, "host": 0.2}),
    (traced(event(GEMM, 0, 60), event(NCCL, 40, 50)), {"compute": 0.6, "exchange": 0.3, "host": 0.1}),  # a part is hidden
    (traced(event("flash_fwd_kernel<…>", 0, 30), event(GEMM, 10, 30)), {"compute": 0.4, "host": 0.6}),  # two streams at once
    (
        traced(event("Memcpy HtoD (Pageable -> Device)", 0, 10, "gpu_memcpy"), event(GEMM, 5, 15)),
        {"copies": 0.05, "compute": 0.15},
    ),
    (traced(event("Memcpy DtoD (Device -> Device)", 0, 10, "gpu_memcpy")), {"memory": 0.1}),
    (
        traced(event(GEMM, 0, 50), event("enumerate(DataLoader)#_X.__next__", 40, 40, "user_annotation")),
        {"data": 0.3, "host": 0.2},
    ),
    (traced(event(GEMM, 150, 100), steps=3), {"compute": 1 / 3}),
    (
        traced(
            event(GEMM, 0, 50, args={"device": 1}), event(ADD, 0, 9, args={"device": 0}), event(ADD, 50, 9, args={"device": 1})
        ),
        {"compute": 0.5, "memory": 0.09},
    ),
    (
        traced(event("aten::mm", 0, 40, "cpu_op"), event("aten::linear", 0, 50, "cpu_op"), event("aten::add", 50, 10, "cpu_op")),
        {"compute": 0.5, "memory": 0.1},
    ),
    (
        traced(event("aten::randint", 0, 40, "cpu_op"), event("enumerate(DataLoader)#_X.__next__", 0, 50, "user_annotation")),
        {"data": 0.5, "memory": 0},
    ),
]


@pytest.mark.parametrize(("text", "shares"), TRACES)
def test_each_moment_of_a_trace_is_counted_once(text: str, shares: dict[str, float]) -> None:
    found = read_profile(text)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert {name: found.shares[name] for name in shares} == pytest.approx(shares)
    assert found.seconds == pytest.approx(100e-6)


DMON = (
    "# gpu     sm    mem    enc    dec\n# Idx      %      %      %      %\n"
    "    0     {0}     31      0      0\n    1     {0}     -      0      0\n"
)
IOSTAT = """avg-cpu:  %user   %nice %system %iowait  %steal   %idle
          90.00    0.00    5.00    0.00    0.00    5.00

Device            r/s     rkB/s  %util
nvme0n1          9.00     99.00   1.00

avg-cpu:  %user   %nice %system %iowait  %steal   %idle
          {user}    0.00    5.00    20.00    0.00    {idle}

Device            r/s     rkB/s  %util
nvme0n1        900.00  99999.00   {util}
sda              0.00      0.00   0.00
"""
FIGURES = [
    (DMON.format(54), "host", "a kernel runs", 0.54),
    (DMON.format(97), None, "a kernel runs", 0.97),
    (IOSTAT.format(user=10, idle=65, util=97), "data", "nvme0n1 is busy", 0.97),
    (IOSTAT.format(user=90, idle=4, util=3), "host", "processors are idle", 0.04),
    (IOSTAT.format(user=10, idle=65, util=30), None, "processors wait for disks", 0.2),
    ("iter: 20  time: 0.50  data_time: 0.30  lr: 1e-4\niter: 40  time: 0.50  data_time: 0.20", "data", "waiting for data", 0.5),
    ("Train: 0 [50/100] Time: 0.500s, Data: 0.050s", None, "waiting for data", 0.1),
    ('{"data_time": 0.2, "step_time": 0.4}', "data", "waiting for data", 0.5),
]


@pytest.mark.parametrize(("text", "bound", "figure", "value"), FIGURES)
def test_what_tables_and_lines_point_to(text: str, bound: str | None, figure: str, value: float) -> None:
    found = bottleneck(JOB, text)
    assert found.bound == bound
    assert found.figures[figure] == pytest.approx(value)
    assert all(one.measured is None for one in found.bounds)
    assert sum(one.predicted or 0 for one in found.bounds) == pytest.approx(1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        '{"traceEvents": []}',
        '{"traceEvents": [{"ph": "X", "ts": "x", "dur": 1}]}',
        "time: 0.5",
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1e999}]}',
        DMON.format("-"),
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read_profile(text)


def test_remedies_come_by_what_they_bring_and_only_for_what_takes_time() -> None:
    loading = event("enumerate(DataLoader)#_X.__next__", 40, 60, "user_annotation")
    found = bottleneck(JOB, traced(event(GEMM, 0, 40), loading))
    assert found.bound == "data"
    assert [one.gain for one in found.remedies] == sorted((one.gain for one in found.remedies), reverse=True)
    assert found.remedies[0].bound == "data"
    assert found.remedies[0].gain == pytest.approx(0.6)
    assert {one.bound for one in found.remedies} <= {"data", "compute"}
    again = next(one for one in found.remedies if one.bound == "compute")
    assert again.change == {"training": {"activation_checkpointing": "none"}}
    assert 0.05 < again.gain < 0.4 / 3  # a fourth of the products is done twice


@pytest.mark.torch
def test_a_real_trace_of_a_slow_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny model on the CPU, whose loader sleeps, and does not."""
    torch = pytest.importorskip("torch")
    from time import sleep

    from torch.profiler import ProfilerActivity, profile

    class Rows(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def __len__(self) -> int:
            return 8

        def __getitem__(self, at: int) -> Any:
            sleep(self.seconds)
            return torch.ones(64, 64)

    layer = torch.nn.Linear(64, 64)
    bounds = []
    for seconds in (0.05, 0.0):
        path = tmp_path / "trace.json"
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            for batch in torch.utils.data.DataLoader(Rows(seconds), batch_size=4):
                layer(batch).sum().backward()
                recorded.step()
        recorded.export_chrome_trace(str(path))
        found = bottleneck(JOB, path)
        bounds.append(found.bound)
        shares = {one.name: one.measured for one in found.bounds}
    assert bounds[0] == "data"
    assert shares["compute"]
    job = tmp_path / "job.yaml"
    job.write_text("model: llama-3.2-1b\nhardware: {gpu: a100-80gb}\n", encoding="utf-8")
    assert main(["bottleneck", str(job), "--profile", str(path)]) == 0
    assert "read as: trace of torch's profiler" in capsys.readouterr().out
