"""Which hardware does it: beside the headline asked of every card, what is refused, and that no card is left out."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
import yaml

from estimator import InvalidJob, WillItFitError, fit, which
from estimator.cli.main import main
from estimator.contract.job import read_job
from estimator.facts import catalogue
from estimator.hardware.accelerator import FOLDER, accelerator
from estimator.hardware.capacity import capacity
from estimator.pipeline.estimation import estimate
from estimator.planner import amounts
from estimator.planner.cases import Own
from estimator.planner.fleet import cards, sizes
from estimator.planner.renting import Within
from estimator.planner.ways import every_way, platform, platforms, slugs, ways
from estimator.planner.which_answer import Which
from estimator.planner.which_search import Search
from tests.jobs import ROOT, TINY

TODAY = date(2026, 11, 22)
JOB: dict[str, Any] = {"model": TINY, "training": {"precision": "bf16-true", "sequence_length": 1024, "tokens": "10M"}}


def asked(*arguments: Any, **options: Any) -> Which:
    return which(*arguments, **{"today": TODAY, "top": None, **options})


def _verdict(model: str, card: str, gpus: int, slug: str) -> bool | None:
    """What the headline says of a way by its short name."""
    (name,) = {way.way for way in ways(platform(capacity(read_job(_on(card)).hardware)), {}, {}) if way.slug == slug}
    (row,) = [row for row in fit(model, f"{gpus}x{card}").rows if row.way == name]
    return row.fits


def _on(card: str) -> dict[str, Any]:
    return {"model": "gpt2", "hardware": {"gpu": card}}


def test_rows_that_are_listed_say_how_fast_they_are() -> None:
    found = asked({**JOB, "model": "gpt2"}, memory="24GB", max_gpus=1, top=3)
    assert [row.tokens_per_second for row in found.rows] == [
        time and time.tokens_per_second for time in (estimate(row.job).time for row in found.rows)
    ]
    assert any(row.tokens_per_second for row in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "slug", "memory"), [("llama-2-13b", "serve", "24GB"), ("llama-2-7b", "lora", "8GB..12GB")])
def test_each_row_is_the_fewest_that_the_headline_says_fit(model: str, slug: str, memory: str) -> None:
    found = asked(model, slug, memory=memory)
    assert found.rows
    for row in found.rows[::3]:
        assert _verdict(model, row.accelerator, row.gpus, slug)
        counts = [size.gpus for size in sizes(accelerator(row.accelerator), 64) if size.gpus < row.gpus]
        assert not any(_verdict(model, row.accelerator, count, slug) for count in counts)
        assert (row.fewer is None) == (not counts)


@pytest.mark.slow
@pytest.mark.parametrize("within", [None, "1000d"])
def test_more_of_a_card_are_tried_where_they_may_be_better(within: str | None) -> None:
    found = asked("gpt2", "lora", tokens="10M", memory="24GB", within=within)
    priced, unpriced = (
        Counter(row.accelerator for row in found.rows if bool(row.price_per_hour) is known) for known in (True, False)
    )
    assert max(priced.values()) > 1
    assert (max(unpriced.values()) > 1) == (within is not None)


@pytest.mark.slow
def test_no_card_is_left_out() -> None:
    search = Search(Own(read_job(JOB | {"hardware": {"gpu": "h100"}}), True), Within(None, None), TODAY, True, 64)
    search.run(cards(), lambda tried: None)
    named = {row.accelerator for row in search.rows} | {one.accelerator for one in search.failed}
    named |= {name for names in search.unknown.values() for name in names}
    assert named == set(catalogue.names(FOLDER))


@pytest.mark.slow
def test_the_smallest_offers_least_and_what_is_too_small_no_more() -> None:
    found = asked("llama-2-13b", "qlora", memory="8GB..24GB")
    assert found.smallest is not None
    assert found.too_small is not None
    assert found.smallest.offered_bytes == min(row.offered_bytes for row in found.rows)
    assert found.too_small.offered_bytes <= found.smallest.offered_bytes
    assert "more than the" in found.too_small.reason or "alone are" in found.too_small.reason
    assert found.cheapest is not None
    assert Decimal(found.cheapest.price_per_hour or 0) == min(Decimal(r.price_per_hour) for r in found.rows if r.price_per_hour)


def test_a_run_is_within_its_limits_and_what_is_not_known_is_said() -> None:
    found = asked("llama-3.2-1b", "lora", tokens="100M", within="6h", under="$4", memory="16GB..24GB")
    assert found.rows
    assert all((row.hours or 99) <= 6 and Decimal(row.total or 99) <= 4 for row in found.rows)
    assert {"it fits, but its price is not known"} <= {one.why for one in found.unknown}
    first = found.rows[0]
    assert estimate(first.job, today=TODAY).memory.total_bytes == first.total_bytes


def test_an_hour_of_a_server_may_cost_so_much() -> None:
    found = asked("llama-3-8b", under="$0.50/h", memory="24GB..48GB")
    assert found.rows
    assert all(Decimal(row.price_per_hour or 99) <= Decimal("0.50") for row in found.rows)
    assert found.too_small is None or "costs" in found.too_small.reason or "needed" in found.too_small.reason


def test_what_no_card_holds_is_no_and_what_is_not_modelled_is_unknown() -> None:
    assert asked("llama-3.1-405b", "full-mixed", memory="24GB", max_gpus=8).possible is None  # Apple's are not known
    job = {"model": "llama-3.1-70b", "training": {"precision": "16-mixed"}}
    assert asked(job, memory="11GB", max_gpus=4).possible is False


def test_an_interrupt_keeps_what_was_found() -> None:
    def watch(tried: int) -> None:
        if tried == 60:
            raise KeyboardInterrupt

    found = asked("llama-3-8b", watch=watch)
    assert not found.complete
    assert found.tried == 60
    assert asked("llama-3-8b").complete


BAD = [
    (("gpt2", "fine-tune"), {}, "is no task; write serve"),
    (("gpt2", "lora"), {"within": "24"}, "has no unit: write 24h"),
    (("gpt2", "lora"), {"within": "soon"}, "is no time"),
    (("gpt2", "lora"), {"under": "50"}, "has no currency: write $50"),
    (("gpt2", "lora"), {"under": "much"}, "is no amount of money"),
    (("gpt2", "lora"), {"within": "24h"}, "needs the length of the run"),
    (("gpt2",), {"within": "24h"}, "serving has no end"),
    (("gpt2",), {"tokens": "1e9"}, "this is served"),
    (("gpt2",), {"sequence": 512}, "say the context"),
    (("gpt2", "lora"), {"context": 512}, "say the sequence"),
    (("gpt2", "lora"), {"tokens": "many"}, "is not a count"),
    (("gpt2",), {"memory": "80GB..24GB"}, "is an empty range"),
    (("gpt2",), {"memory": ".."}, "says no amount"),
    (("gpt2",), {"memory": "lots"}, "is not an amount of memory"),
    (("gpt2",), {"memory": "7.1GB"}, "no card is sold with"),
    (("gpt2",), {"max_gpus": 0}, "write a number from 1"),
    ((JOB, "lora"), {}, "a job says itself what it does"),
    ((JOB,), {"context": 4096}, "a job says itself how long"),
    (({"model": TINY, "training": {"attention": "flash_attention_9"}},), {}, "training.attention"),
]


@pytest.mark.parametrize(("arguments", "options", "says"), BAD, ids=lambda value: str(value)[:40])
def test_what_makes_no_sense_is_refused(arguments: tuple[Any, ...], options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        asked(*arguments, **options)
    assert says in str(refused.value)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(WillItFitError, match="llama-3-8b"):
        asked("llama-3-8c")


@pytest.mark.parametrize(
    ("text", "hours"), [("24h", 24), ("3 days", 72), ("90min", 1.5), ("1.5d", 36), ("2 weeks", 336), ("36 hours", 36)]
)
def test_times_as_people_write_them(text: str, hours: float) -> None:
    assert amounts.hours(text) == pytest.approx(hours)


@pytest.mark.parametrize(
    ("text", "money"),
    [
        ("$50", ("50", "USD", False)),
        ("50 EUR", ("50", "EUR", False)),
        ("€2/h", ("2", "EUR", True)),
        ("2.50 usd per hour", ("2.50", "USD", True)),
    ],
)
def test_money_as_people_write_it(text: str, money: tuple[str, str, bool]) -> None:
    assert amounts.money(text) == (Decimal(money[0]), *money[1:])


def test_every_platform_has_each_way_once_at_most() -> None:
    assert {way.slug for way in every_way()} == set(slugs())
    for kind in platforms():
        names = [way.slug for way in ways(kind, {}, {})]
        assert len(names) == len(set(names)), kind.name


def test_every_door_gives_the_same_bytes(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from fastapi.testclient import TestClient

    from api.app import app

    client = TestClient(app)
    expected = which("llama-2-7b", "qlora", memory="16GB", top=3).to_json()
    assert main(["which", "llama-2-7b", "--task", "qlora", "--memory", "16GB", "--top", "3", "--json"]) == 0
    assert capsys.readouterr().out == expected
    query: dict[str, str | int] = {"model": "llama-2-7b", "task": "qlora", "memory": "16GB", "top": 3}
    assert client.get("/v1/which", params=query).text == expected
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB, sort_keys=False), encoding="utf-8")
    assert main(["which", str(path), "--memory", "16GB", "--json"]) == 0
    assert client.post("/v1/which?memory=16GB", json=JOB).text == capsys.readouterr().out
    assert client.get("/v1/which", params={"model": "gpt2", "task": "lora", "within": "24"}).status_code == 422


def test_the_text_names_the_smallest_and_the_cheapest(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "docs" / "examples" / "serve.yaml")
    assert main(["which", path, "--memory", "24GB", "--top", "2", "--check"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("YES: qwen3-8b, the job (serve): ")
    assert {"smallest", "cheapest", "too"} <= {line.split(" ")[0] for line in text.splitlines()}
    assert json.loads(which(path, memory="24GB").to_json())["smallest"]["accelerator"] in text
