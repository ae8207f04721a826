"""The headline's rows: tests/cases/headline.yaml; and that no row says what is not so."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from functools import cache
from math import ceil
from typing import Any

import pytest

from estimator.contract.errors import InvalidJob, NotModelled, WillItFitError
from estimator.contract.job import Hardware, Job
from estimator.contract.units import money
from estimator.facts import catalogue
from estimator.hardware.accelerator import FOLDER
from estimator.hardware.capacity import capacity
from estimator.hardware.parse import read_hardware
from estimator.pipeline.estimation import estimate
from estimator.pipeline.judged import fits
from estimator.planner.headline import fit
from estimator.planner.headline_answer import Fit
from estimator.planner.ways import every_way, platform, platforms, ways
from tests.jobs import cases

CASES = cases("headline")


@cache
def answer(model: str, hardware: str) -> Fit:
    return fit(model, hardware)


@pytest.mark.share(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']} {case['hardware']} {case['row']}")
def test_a_row(case: dict[str, Any]) -> None:
    assert set(case) <= {"model", "hardware", "row", "verdict", "spread", "would", "says", "not", "absent"}
    whole = answer(case["model"], case["hardware"])
    assert_rows_say_what_is_consistent(whole)
    found = [row for row in whole.rows if row.way == case["row"]]
    if case.get("absent"):
        assert not found
        return
    (row,) = found
    assert row.verdict == case.get("verdict", row.verdict)
    assert row.spread.startswith(case.get("spread", ""))
    assert row.would_fit_with.startswith(case.get("would", ""))
    assert case.get("says", "") in row.problem + row.note
    assert "not" not in case or case["not"] not in row.would_fit_with + row.problem + row.note


def assert_rows_say_what_is_consistent(found: Fit) -> None:
    for row in found.rows:
        assert (row.fits is None) == (row.verdict in ("unknown", "does not run"))
        assert (row.job is None) == (row.total_bytes is None)
        assert bool(row.would_fit_with) == (row.verdict == "does not fit" and row.total_bytes is not None)
        if row.verdict == "does not fit" and row.total_bytes is None:
            assert "alone are" in row.problem  # a bound from below, and so certain


def test_a_run_of_so_many_tokens_has_hours_and_a_cost() -> None:
    found = fit("gpt2", "gh200", tokens="5M")
    trained = [row for row in found.rows if row.hours is not None]
    assert found.rent is not None
    assert trained
    for row in trained:
        assert row.job is not None
        run = estimate(row.job).run
        assert run is not None
        assert row.hours == run.hours
        minutes = Decimal(ceil((run.hours or 0) * 60))  # which are billed whole
        assert row.total == money(Decimal(found.rent.price_per_hour) * minutes / 60)


@pytest.mark.parametrize(
    ("asked", "says"),
    [({"tokens": "many"}, "tokens: "), ({"tokens": "1B", "task": "serve"}, "tokens: are what a training run processes")],
)
def test_tokens_that_no_run_processes_are_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        fit("gpt2", "h100", **asked)


STRATEGIES = ("ddp", "fsdp2", "fsdp1", "zero2", "zero3")
SETTINGS = ("precision", "adapter", "quantization", "sequence_length", "autocast")


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [2, 8, 16, 64, 512])
@pytest.mark.parametrize(("model", "on"), [("gemma-2-9b", "8GB"), ("llama-2-70b", "gtx-1080")])
def test_no_number_means_that_none_does(model: str, on: str, gpus: int) -> None:
    """No strategy that is modelled fits, on any number of GPUs: they are tried one by one here."""
    rows = [row for row in answer(model, on).rows if "no number of these" in row.would_fit_with]
    assert rows
    hardware = read_hardware(on).hardware
    size = {"gpu": hardware.gpu, "memory": hardware.memory, "gpus": min(gpus, 8), "nodes": max(1, gpus // 8)}
    for row in rows:
        assert row.job is not None
        training = {name: row.job["training"][name] for name in SETTINGS}
        for strategy in STRATEGIES:
            job = {"model": model, "training": training, "hardware": size, "parallelism": {"strategy": strategy}}
            with suppress(WillItFitError):
                assert not fits(job), (row.way, strategy)


def test_every_accelerator_has_a_platform_and_rows() -> None:
    for name in catalogue.names(FOLDER):
        kind = platform(capacity(Hardware(gpu=name)))
        asked = ways(kind, {"context": 4096}, {"sequence_length": 2048})
        assert any(way.part == "serving" for way in asked), name
        assert any(way.part == "training" for way in asked), name
        assert len({way.way for way in asked}) == len(asked), name


def test_ways_name_platforms_that_exist_and_are_jobs() -> None:
    known = {kind.name for kind in platforms()}
    for way in every_way():
        named = [*way.where, *(name for one in way.elsewhere for name in one.where)]
        assert set(named) <= known
        assert len(named) == len(set(named)), way.way
        assert all(one.source for one in way.elsewhere)
        Job.model_validate({"model": "gpt2", **way.job})
    assert all(kind.source and kind.as_of for kind in platforms() if kind.says)


def test_a_question_says_how_much_is_served_and_trained() -> None:
    plain = {row.way: row for row in answer("qwen3-0.6b", "24GB").rows}
    asked = {row.way: row for row in fit("qwen3-0.6b", "24GB", context=8192, concurrency=4, sequence=512, batch=2).rows}
    served, trained = asked["serve bf16"].job, asked["LoRA (bf16)"].job
    assert served
    assert trained
    assert (served["serving"]["context"], served["serving"]["concurrency"]) == (8192, 4)
    assert (trained["training"]["sequence_length"], trained["training"]["micro_batch_size"]) == (512, 2)
    assert (asked["serve bf16"].total_bytes or 0) > (plain["serve bf16"].total_bytes or 0)
    assert any("2 clips of 15.625 s per GPU" in said for said in fit("hubert-large", "24GB", batch=2, task="full").assumptions)


@pytest.mark.parametrize(("settings", "where"), [({"context": 0}, "context"), ({"batch": 2**30}, "micro_batch_size")])
def test_a_question_of_no_such_number_is_refused(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidJob, match=where):
        fit("gpt2", "8GB", **settings)


def test_a_way_that_is_asked_for_alone_is_answered_or_refused() -> None:
    (row,) = fit("longcat-flash", "rtx-3090", task="serve-gguf").rows
    assert (row.verdict, row.way) == ("unknown", "serve q4_k_m, llama.cpp")
    assert "llama.cpp" in row.problem
    with pytest.raises(NotModelled, match="not among the usual ways"):
        fit("llama-3-8b", "tpu-v5e", task="serve-gguf")


@pytest.mark.parametrize(
    ("on", "engine", "served"),
    [
        ("rtx-4090", "sglang", ["serve awq-int4, SGLang, as published", "serve bf16, SGLang", "serve fp8, SGLang"]),
        ("rtx-4090", "vllm", ["serve awq-int4, as published", "serve bf16", "serve fp8"]),
        ("rtx-4090", "ollama", ["serve q4_k_m, Ollama"]),
        ("m3-max-64gb", "llama.cpp", ["serve fp16, llama.cpp", "serve q8_0, llama.cpp", "serve q4_k_m, llama.cpp"]),
    ],
)
def test_an_engine_that_is_asked_for_alone_serves(on: str, engine: str, served: list[str]) -> None:
    found = fit("qwen3-8b-awq", on, engine=engine)
    assert [row.way for row in found.rows] == served
    assert [(row.job or {})["serving"].get("engine", "vllm") for row in found.rows] == [engine] * len(served)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"on": "rtx-4090", "engine": "vlm"}, "Did you mean 'vllm'"),
        ({"on": "mi300x", "engine": "sglang"}, "SGLang on instinct is not modelled"),
        ({"on": "rtx-4090", "engine": "sglang", "task": "qlora"}, "usual ways of serving"),
        ({"on": "rtx-4090", "task": "qlora", "context": 8192}, "say the sequence"),
        ({"on": "rtx-4090", "task": "serve", "sequence": 8192}, "say the context"),
    ],
)
def test_what_is_served_and_what_is_trained_are_told_apart(asked: dict[str, Any], says: str) -> None:
    given = dict(asked)
    with pytest.raises(WillItFitError, match=says):
        fit("qwen3-8b", given.pop("on"), **given)


def test_the_context_that_would_fit_is_the_longest() -> None:
    """One token more does not start."""
    row = next(row for row in fit("qwen3-8b", "24GB", context=131072).rows if row.way == "serve bf16")
    assert row.longest_context is not None
    assert row.would_fit_with == f"context {row.longest_context}"
    for context, starts in ((row.longest_context, True), (row.longest_context + 1, False)):
        found = next(one for one in fit("qwen3-8b", "24GB", context=context).rows if one.way == "serve bf16")
        assert found.fits is starts


def test_a_way_that_fits_is_as_fast_as_its_job() -> None:
    found = fit("qwen3-0.6b", "rtx-4090", task="serve")
    for row in found.rows:
        answer = estimate(row.job or {})
        assert answer.time is not None
        assert (row.fits, row.tokens_per_second) == (True, answer.time.tokens_per_second)
    assert not fit("qwen3-0.6b", "24GB", task="serve").timed


@pytest.mark.parametrize(
    ("on", "instance", "instances"),
    [
        ("p5.48xlarge", "p5.48xlarge", 1),
        ("2x p4d.24xlarge", "p4d.24xlarge", 2),
        ("24GB", None, None),
        ("m3-max-64gb", None, None),
    ],
)
def test_what_is_asked_about_is_what_is_rented(on: str, instance: str | None, instances: int | None) -> None:
    rent = fit("gpt2", on, task="serve-gguf").rent
    assert (rent and rent.instance, rent and rent.instances) == (instance, instances)
