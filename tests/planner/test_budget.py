"""The budget: what it ranks, what it leaves out, and what it says when it cannot be done."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from estimator import estimate
from estimator.cli.main import main
from estimator.contract.errors import InvalidJob, NotModelled, UnknownName, WillItFitError
from estimator.contract.job import Job, read_job
from estimator.contract.units import money
from estimator.planner.answers import Budget, BudgetRow
from estimator.planner.budget import Limits, budget, narrowed, spread

TODAY = date(2026, 11, 22)
JOB: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "training": {"precision": "bf16-true", "sequence_length": 1024, "gradient_accumulation_steps": 16, "tokens": 10**9},
}


def job(**hardware: Any) -> Job:
    return read_job({**JOB, "hardware": hardware})


def asked(limits: Limits | None = None, rows: int = 10, **hardware: Any) -> Budget:
    return budget(job(**hardware), limits, TODAY, rows)


def test_the_cheapest_come_first_and_are_within_the_limits() -> None:
    found = asked(Limits(Decimal(30), 20.0))
    totals = [Decimal(row.total) for row in found.rows]
    assert found.possible
    assert len(totals) == 10
    assert totals == sorted(totals)
    assert totals[-1] <= 30
    assert all(row.hours <= 20 and row.within for row in found.rows)


def test_a_row_is_what_its_job_costs() -> None:
    for row in asked(rows=30, rent={"kind": "on-demand"}).rows[::6]:
        rent = {"provider": row.provider, "instance": row.instance, "region": row.region, "kind": row.kind}
        answer = estimate({**row.job, "hardware": {**row.job["hardware"], "rent": rent}}, today=TODAY)
        assert answer.fits
        assert answer.cost
        assert answer.cost.total == row.total
        assert answer.cost.gpu_hours == pytest.approx(row.gpu_hours, abs=0.001)


def test_what_cannot_be_done_comes_with_the_nearest_that_can() -> None:
    found = asked(Limits(Decimal("0.01"), 0.001))
    assert not found.possible
    assert found.reason.startswith("it cannot be done for 0.01 and within 0.001 h: the cheapest way costs")
    cheapest, quickest = found.rows
    assert not cheapest.within
    assert Decimal(cheapest.total) <= Decimal(quickest.total)
    assert quickest.hours <= cheapest.hours


def test_more_of_an_instance_only_where_fewer_take_too_long() -> None:
    assert {row.instances for row in asked(rows=100).rows} == {1}
    hurried = asked(Limits(hours=1.0), rows=100)
    assert hurried.possible
    assert any(row.instances > 1 for row in hurried.rows)


def test_interruptions_lengthen_a_spot_instance() -> None:
    def first(kind: str) -> BudgetRow:
        return asked(rows=1, gpu="h100", rent={"provider": "aws", "instance": "p5.48xlarge", "kind": kind}).rows[0]

    spot, plain = first("spot"), first("on-demand")
    assert spot.hours > plain.hours


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 16])
def test_the_batch_is_kept(gpus: int) -> None:
    found = spread(job(), "h100", gpus, 1)
    assert found
    training = found.training
    assert training.micro_batch_size * training.gradient_accumulation_steps * (found.parallelism.data or 0) == 16


def test_degrees_that_do_not_divide_the_gpus_are_left_out() -> None:
    split = job().model_copy(update={"parallelism": job().parallelism.model_copy(update={"tensor": 4})})
    assert spread(split, "h100", 2, 1) is None
    found = spread(split, "h100", 8, 1)
    assert found
    assert found.parallelism.data == 2


def test_what_no_budget_is_made_of() -> None:
    with pytest.raises(NotModelled, match="training"):
        budget(read_job({"model": "gpt2", "task": "serve"}), today=TODAY)
    with pytest.raises(InvalidJob, match="tokens"):
        budget(read_job({"model": "gpt2"}), today=TODAY)
    with pytest.raises(InvalidJob, match="nothing that is h100 and nobody can be rented"):
        asked(gpu="h100", rent={"provider": "nobody"})
    with pytest.raises(InvalidJob, match="reserved-1y"):
        narrowed(job(), {"kind": "borrowed"})


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"model": "llama-3.2-1b-and-a-half"}, UnknownName, "no model is called"),
        ({"training": {"precision": "32-true", "autocast": True, "tokens": 10**9}}, InvalidJob, "write bf16-mixed"),
    ],
)
def test_what_is_wrong_with_a_job_is_no_want_of_room(changes: dict[str, Any], error: type[WillItFitError], said: str) -> None:
    with pytest.raises(error, match=said):
        budget(read_job({**JOB, **changes, "hardware": {"gpu": "h100"}}), None, TODAY)


@pytest.mark.parametrize(("memory", "possible"), [("1GiB", False), ("512GiB", True)])
def test_a_host_too_small_is_as_bad_as_a_gpu(memory: str, possible: bool) -> None:
    found = budget(read_job({**JOB, "host": {"memory": memory}, "hardware": {"gpu": "h100"}}), None, TODAY)
    assert found.possible is possible
    assert possible or "host.memory" in found.reason


def test_money_is_decimal() -> None:
    for row in asked(rows=3).rows:
        assert row.total == money(Decimal(row.total))
        low, high = map(Decimal, row.range_total)
        assert low <= Decimal(row.total) <= high


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(JOB))
    assert main(["budget", str(file), "--gpu", "h100", "--top", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["accelerator"] for row in rows] == ["h100", "h100"]
    assert main(["budget", str(file), "--max-cost", "0.01", "--check"]) == 1
    assert capsys.readouterr().out.startswith("NO: it cannot be done for 0.01")
    with pytest.raises(SystemExit):
        main(["budget", str(file), "--max-cost", "much"])
    assert "no amount of money" in capsys.readouterr().err
