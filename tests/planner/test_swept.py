"""Sweeps as people ask for them: each number is what `estimate` says; columns, CSV, Arrow; shared by workers; the doors."""

from __future__ import annotations

import csv
import io
import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from api.answers import MOST_POINTS
from api.app import app
from estimator import InvalidJob, WillItFitError, estimate
from estimator.cli.main import main
from estimator.planner.swept import COLUMNS, Swept, swept
from estimator.sweeps.sweep import FEW
from tests.jobs import TINY, merged

JOB: dict[str, Any] = {"model": TINY, "hardware": {"gpu": "a100-80gb"}, "training": {"adapter": {"rank": 8}}}
LENGTHS, AGAIN = "training.sequence_length", "training.activation_checkpointing"
CHANGES = {LENGTHS: "64..256", AGAIN: "none,full", "training.micro_batch_size": "1..3:1"}


@pytest.fixture(scope="module")
def found() -> Swept:
    return swept(JOB, CHANGES, reserves=True)


@pytest.mark.slow
def test_each_point_is_what_estimate_says(found: Swept) -> None:
    points = list(product([64, 128, 256], ["none", "full"], [1, 2, 3]))
    rows = list(found.rows())
    assert found.points == len(points) == len(rows)
    for (length, again, batch), row in list(zip(points, rows, strict=True))[::5]:
        training = {"sequence_length": length, "activation_checkpointing": again, "micro_batch_size": batch}
        memory = (answer := estimate(merged(JOB, {"training": training}))).memory
        said = dict(zip([*found.fields, *COLUMNS], row, strict=True))
        assert (said[LENGTHS], said[AGAIN]) == (length, again)
        assert (said["peak_bytes"], said["resident_bytes"]) == (memory.peak_bytes, memory.resident_bytes)
        assert (said["total_bytes"], said["fits"]) == (memory.total_bytes, answer.fits)
    assert {*found.how} == {"program"}


def test_workers_say_the_same(found: Swept) -> None:
    with ProcessPoolExecutor(2) as executor:
        assert swept(JOB, CHANGES, reserves=True, executor=executor).to_json() == found.to_json()


def test_the_allocator_is_asked_where_that_was_asked() -> None:
    found = swept(JOB, {LENGTHS: f"64..{64 + FEW}:1"})
    assert found.points == FEW + 1
    assert not any(found.fits)
    assert not any(found.total_bytes)
    assert any("reserves" in one for one in found.assumptions)
    assert any("what-if" in one for one in found.assumptions)


def test_few_combinations_are_decided_without_asking() -> None:
    found = swept(JOB, {LENGTHS: [64, 128]})
    assert found.fits == [True, True]
    assert found.total_bytes == [
        estimate(merged(JOB, {"training": {"sequence_length": n}})).memory.total_bytes for n in (64, 128)
    ]
    assert not any("reserves" in one for one in found.assumptions)


@pytest.mark.parametrize(
    ("engine", "context"), [("vllm", "1k,64k,128k"), ("sglang", "1k,64k,128k"), ("llama.cpp", "1k,64k,128k")]
)
def test_what_an_engine_holds_is_decided_without_the_allocator(engine: str, context: str) -> None:
    """Also where the bytes would fit, but the engine would not start."""
    job = {"model": "llama-3.1-8b", "task": "serve", "hardware": {"gpu": "rtx-4090"}, "serving": {"engine": engine}}
    found = swept(job, {"serving.context": context})
    answers = [estimate(merged(job, {"serving": {"context": length}})) for length in found.fields["serving.context"]]
    assert found.fits == [answer.fits for answer in answers]
    assert found.total_bytes == [answer.memory.total_bytes for answer in answers]
    assert {True, False} <= {*found.fits}


def test_the_table_as_csv(found: Swept) -> None:
    header, *rows = csv.reader(io.StringIO(found.to_csv()))
    assert header == [*CHANGES, *COLUMNS]
    assert len(rows) == found.points
    assert rows[0][:3] == ["64", "none", "1"]
    assert rows[-1][3] == str(found.peak_bytes[-1])


def test_the_table_as_arrow(found: Swept, tmp_path: Path) -> None:
    feather = pytest.importorskip("pyarrow.feather")
    found.write_arrow(tmp_path / "rows.arrow")
    table = feather.read_table(tmp_path / "rows.arrow")
    assert table.column_names == [*CHANGES, *COLUMNS]
    assert table.column("peak_bytes").to_pylist() == found.peak_bytes


def test_a_combination_that_is_refused_says_why() -> None:
    both = {"training.loss": ["eager", "fused"], "training.implementation": ["torchtitan", "liger"]}
    found = swept({**JOB, "training": {}}, both)
    refused = [at for at, how in enumerate(found.how) if how == "refused"]
    assert refused
    assert all(found.peak_bytes[at] is None and found.fits[at] is None for at in refused)
    assert sum(found.refusals.values()) == len(refused)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "say what to change"),
        ({"training.length": "1"}, "no such field"),
        ({LENGTHS: "1..5000:1", "training.micro_batch_size": "1..5000:1"}, "25,000,000 combinations, more than"),
        ({LENGTHS: "8..1"}, "empty range"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WillItFitError, match=r"\w") as refused:
        swept(JOB, changes)
    assert says in str(refused.value)


def test_the_doors_say_what_python_says(found: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    asked = [f"{field}={values}" for field, values in CHANGES.items()]
    assert main(["sweep", str(path), *asked, "--reserves", "--json"]) == 0
    assert capsys.readouterr().out == found.to_json()
    assert main(["sweep", str(path), *asked, "--reserves", "--csv"]) == 0
    assert capsys.readouterr().out == found.to_csv()
    assert main(["sweep", str(path), *asked]) == 0
    assert capsys.readouterr().out.startswith("18 combinations: 18 fits\n")
    plain = swept(JOB, CHANGES)
    client = TestClient(app)
    answer = client.post("/v1/sweep", params={"change": asked}, json=JOB)
    assert answer.status_code == 200
    assert answer.text == plain.to_json()
    assert client.post("/v1/sweep", params={"change": asked, "format": "csv"}, json=JOB).text == plain.to_csv()
    many = client.post("/v1/sweep", params={"change": [f"{LENGTHS}=1..{MOST_POINTS + 1}:1"]}, json=JOB)
    assert many.status_code == 422
    assert "detail" in json.loads(many.text)


def test_without_a_file_of_arrow_it_says_what_to_install(found: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InvalidJob, match="pip install pyarrow"):
        found.write_arrow(tmp_path / "rows.arrow")


def test_dask_says_the_same(found: Swept) -> None:
    """A local cluster, through the executor that Dask's client is."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.Client(**options) as client:
        executor = client.get_executor()
        assert swept(JOB, CHANGES, reserves=True, executor=executor).to_json() == found.to_json()
