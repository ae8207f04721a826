"""What if: each row is what `estimate` says; which values are read from what people write; the table, CSV and the picture."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from fastapi.testclient import TestClient

from api.answers import MOST_COMBINATIONS
from api.app import app
from estimator import InvalidJob, WhatIf, WillItFitError, estimate, what_if
from estimator.cli.main import main
from estimator.contract.job import read_job
from estimator.planner.limits import limit
from estimator.planner.ranges import values
from estimator.views.picture import picture
from tests.jobs import ROOT, TINY, merged

JOB: dict[str, Any] = {"model": TINY, "hardware": {"gpu": "a100-80gb"}, "training": {"adapter": {"rank": 8}}}
SERVED: dict[str, Any] = {"model": TINY, "task": "serve", "hardware": {"gpu": "a100-80gb"}, "serving": {"context": 512}}


def test_each_row_is_what_estimate_says() -> None:
    found = what_if(JOB, {"training.sequence_length": "64..256", "training.activation_checkpointing": ["none", {"every": 2}]})
    assert found.asked == len(found.rows) == 6
    assert [row.values["training.sequence_length"] for row in found.rows] == [64, 64, 128, 128, 256, 256]
    for row in found.rows:
        job = JOB
        for name, value in row.values.items():
            job = merged(job, {"training": {name.partition(".")[2]: value}})
        answer = estimate(job)
        assert (row.total_bytes, row.peak_bytes, row.verdict) == (
            answer.memory.total_bytes,
            answer.memory.peak_bytes,
            answer.verdict,
        )
        assert answer.time is not None
        assert (row.step_seconds, row.tokens_per_second) == (answer.time.step_seconds, answer.time.tokens_per_second)
        assert row.job is not None
        assert estimate(row.job).memory.total_bytes == row.total_bytes


def test_served_rows_are_too_and_layers_go_with_the_gpus() -> None:
    found = what_if(SERVED, {"hardware.gpus": "1,2", "serving.concurrency": "1..4"})
    for row in found.rows:
        gpus, many = row.values["hardware.gpus"], row.values["serving.concurrency"]
        changes: dict[str, Any] = {"hardware": {"gpus": gpus}, "parallelism": {"tensor": gpus}, "serving": {"concurrency": many}}
        answer = estimate(merged(SERVED, changes))
        assert row.total_bytes == answer.memory.total_bytes
        assert answer.time is not None
        assert row.tokens_per_second == answer.time.tokens_per_second
    assert found.assumptions


def test_where_it_ceases_to_fit_is_what_max_finds() -> None:
    job = merged(
        JOB, {"hardware": {"gpu": None, "memory": "1GB"}, "training": {"attention": "eager", "expandable_segments": True}}
    )
    largest = limit(job, "training.sequence_length", "max").value
    assert largest is not None
    found = what_if(job, {"training.sequence_length": f"{largest - 1}..{largest + 1}:1"})
    assert [row.fits for row in found.rows] == [True, True, False]


def test_what_does_not_go_together_says_why_and_is_no_no() -> None:
    found = what_if(
        JOB,
        {"training.attention": "sdpa,flash_attention_9", "training.micro_batch_size": "1,0", "training.precision": "bf16-true"},
    )
    verdicts = [row.verdict for row in found.rows]
    assert verdicts == ["fits", "refused", "refused", "refused"]
    assert all(row.fits is None and row.reason and row.job is None for row in found.rows[1:])
    unknown = what_if(
        merged(JOB, {"hardware": {"gpus": 2}}), {"parallelism.strategy": "zero3", "training.precision": "bf16-true"}
    )
    assert [(row.verdict, row.fits) for row in unknown.rows] == [("not modelled", None)]


VALUES = [
    ("training.sequence_length", "1k..8k", [1024, 2048, 4096, 8192]),
    ("training.sequence_length", "1k..7k", [1024, 2048, 4096]),
    ("training.sequence_length", "1k-8k", [1024, 2048, 4096, 8192]),
    ("training.sequence_length", "512, 1 – 4", [512, 1, 2, 4]),
    ("training.sequence_length", "3-13:4", [3, 7, 11]),
    ("serving.gpu_memory_utilization", "0.8-0.95:0.05", [0.8, 0.85, 0.9, 0.95]),
    ("training.tokens", "1M-4M", [10**6, 2 * 10**6, 4 * 10**6]),
    ("model", "1-8", ["1-8"]),
    ("training.sequence_length", "3..13:4", [3, 7, 11]),
    ("training.sequence_length", "512, 1k..2k,512", [512, 1024, 2048]),
    ("training.sequence_length", [5, 6], [5, 6]),
    ("training.micro_batch_size", "1..1", [1]),
    ("training.tokens", "1M..4M", [10**6, 2 * 10**6, 4 * 10**6]),
    ("training.tokens", "1e9,2B", ["1e9", "2B"]),
    ("serving.gpu_memory_utilization", "0.8..0.95:0.05", [0.8, 0.85, 0.9, 0.95]),
    ("training.adapter.rank", "8..32", [8, 16, 32]),
    ("training.quantization", "null,nf4", [None, "nf4"]),
    ("training.gradient_clipping", "true,false", [True, False]),
    ("training.activation_checkpointing", "none,{every: 2},{mix: {full: 1}}", ["none", {"every": 2}, {"mix": {"full": 1}}]),
    ("host.memory", "64GB,128GB", ["64GB", "128GB"]),
    ("model", "gpt2,./a..b", ["gpt2", "./a..b"]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "text", "expected"), VALUES, ids=str)
def test_values_as_people_write_them(field: str, text: Any, expected: list[Any]) -> None:
    found = values(read_job(JOB), field, text)
    assert list(found.shown) == expected
    assert [type(value) for value in found.shown] == [type(value) for value in expected]


def test_hardware_is_read_as_everywhere() -> None:
    found = values(read_job(JOB), "hardware", "2x24GB,h100")
    assert found.shown == ("2x24GB", "h100")
    assert found.taken == ({"memory": "24GB", "gpus": 2}, {"gpu": "h100"})
    assert values(read_job(JOB), "hardware.gpu", "a100,4090").taken == ("a100", "4090")


BAD = [
    ({}, "say what to change"),
    ({"training.sequence_lenth": "1k"}, "Did you mean 'training.sequence_length'"),
    ({"rank": "8"}, "Did you mean 'training.adapter.rank'"),
    ({"training.objective.kind": "dpo"}, "the job does not say training.objective"),
    ({"training.sequence_length": ""}, "has no values"),
    ({"training.sequence_length": "1k,,2k"}, "has an empty value"),
    ({"training.sequence_length": []}, "has no values"),
    ({"training.sequence_length": "8k..1k"}, "is an empty range"),
    ({"training.sequence_length": "0..8"}, "does not grow"),
    ({"training.sequence_length": "8k-1k"}, "is an empty range"),
    ({"training.sequence_length": "1..x"}, "is no range"),
    ({"training.sequence_length": "1..8:0"}, "is no range"),
    ({"training.sequence_length": "1..10M:1"}, "has 10,485,760 values, more than 10,000"),
    ({"training.sequence_length": "1..200:1", "training.micro_batch_size": "1..200:1"}, "40,000 combinations, more than 10,000"),
    ({"training.activation_checkpointing": "{every: 2"}, "training.activation_checkpointing"),
    ({"hardware": "many"}, "many"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=str)
def test_what_is_no_question_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WillItFitError) as refused:
        what_if(JOB, changes)
    assert says in str(refused.value)


def test_an_interrupt_keeps_what_was_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(self: object, done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("estimator.cli.progress.Progress.__call__", watch)
    path = str(ROOT / "docs" / "examples" / "full.yaml")
    assert main(["what-if", path, "training.sequence_length=64..512"]) == 130
    text = capsys.readouterr().out
    assert "interrupted after 2 of 4 combinations" in text
    assert "128" in text


@pytest.fixture(scope="module")
def grid() -> WhatIf:
    return what_if(JOB, {"training.sequence_length": "64..512", "training.precision": "bf16-true,32-true,none"})


def test_csv_has_every_row_and_null_is_empty(grid: WhatIf) -> None:
    rows = list(csv.DictReader(io.StringIO(grid.to_csv())))
    assert len(rows) == grid.asked
    for row, expected in zip(rows, grid.rows, strict=True):
        assert row["training.sequence_length"] == str(expected.values["training.sequence_length"])
        assert row["total_bytes"] == ("" if expected.total_bytes is None else str(expected.total_bytes))
        assert row["fits"] == {True: "true", False: "false", None: ""}[expected.fits]


def test_every_door_gives_the_same_bytes(grid: WhatIf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = TestClient(app)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB, sort_keys=False), encoding="utf-8")
    changes = ["training.sequence_length=64..512", "training.precision=bf16-true,32-true,none"]
    for option, form, expected in (("--json", "json", grid.to_json()), ("--csv", "csv", grid.to_csv())):
        assert main(["what-if", str(path), *changes, option]) == 0
        assert capsys.readouterr().out == expected
        assert client.post("/v1/what-if", json=JOB, params={"change": changes, "format": form}).text == expected
    assert main(["what-if", str(path), *changes, "--plot", str(tmp_path / "out.svg")]) == 0
    drawn = client.post("/v1/what-if", json=JOB, params={"change": changes, "format": "svg"})
    assert drawn.headers["content-type"] == "image/svg+xml"
    assert drawn.text == picture(grid) == (tmp_path / "out.svg").read_text(encoding="utf-8")
    asked = {"model": "gpt2", "on": "t4", "change": "training.micro_batch_size=1,2"}
    assert len(client.get("/v1/what-if", params=asked).json()["rows"]) == 2
    many = {**asked, "change": f"training.micro_batch_size=1..{MOST_COMBINATIONS + 1}:1"}
    assert client.get("/v1/what-if", params=many).status_code == 422


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["training.sequence_length"], "is no FIELD=VALUES"),
        (["training.sequence_length=1k", "training.sequence_length=2k"], "is there twice"),
        (["training.sequence_length=1k", "--plot", "out.png"], "a name that ends in .svg"),
        (["training.sequence_length=1k", "--plot", "missing/out.svg"], "cannot be written"),
    ],
    ids=str,
)
def test_a_bad_command_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", str(ROOT / "docs" / "examples" / "full.yaml"), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err


SPACE = "{http://www.w3.org/2000/svg}"


def test_the_picture_of_numbers_has_a_mark_for_each_row(grid: WhatIf) -> None:
    drawn = ElementTree.fromstring(picture(grid))
    known = [row for row in grid.rows if row.total_bytes is not None]
    assert len(drawn.findall(f"{SPACE}circle")) == len(known)
    texts = [text.text for text in drawn.iter(f"{SPACE}text")]
    assert {"64", "128", "256", "512", "bf16-true", "32-true", "training.sequence_length", "GiB per GPU"} <= set(texts)


def test_the_picture_of_words_has_a_bar_for_each_row() -> None:
    found = what_if(JOB, {"training.precision": ["bf16-true", "<&>"], "training.quantization": "null,nf4"})
    text = picture(found)
    drawn = ElementTree.fromstring(text)
    known = [row for row in found.rows if row.total_bytes is not None]
    assert len(drawn.findall(f"{SPACE}rect")) == len(known) + 1  # and the background
    assert "&lt;&amp;&gt;" in text


def test_nothing_is_drawn_outside_the_picture(grid: WhatIf) -> None:
    drawn = ElementTree.fromstring(picture(grid))
    width, height = float(drawn.get("width", 0)), float(drawn.get("height", 0))
    for text in drawn.iter(f"{SPACE}text"):
        size = len(text.text or "") * (10 if text.get("font-weight") else 7)
        x = float(text.get("x", 0)) - {"end": size, "middle": size / 2}.get(text.get("text-anchor", ""), 0)
        assert -1 <= x <= x + size <= width + 1, text.text
        assert 0 < float(text.get("y", 0)) < height


def test_fourteen_questions_are_on_the_page() -> None:
    page = (ROOT / "docs" / "what_if.md").read_text(encoding="utf-8")
    asked = re.findall(r"^(\d+)\. .*?```sh\n(.*?)```", page.partition("## Fourteen questions")[2], re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in asked] == list(range(1, 15))
    assert all(line.startswith("willitfit ") for _, block in asked for line in block.splitlines())


def test_a_model_may_be_what_changes() -> None:
    found = what_if({"model": "gpt2", "hardware": {"gpu": "t4"}}, {"model": "gpt2,llama-3.2-1b", "training.precision": "32-true"})
    assert found.model == ""
    assert len({row.total_bytes for row in found.rows}) == 2
    with pytest.raises(InvalidJob):
        what_if(JOB, {"training.sequence_length": "64"}, on=" ")
