"""Plans beside all candidates estimated one by one, what bounds them, and what is refused."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from estimator import InvalidJob, NotModelled, WillItFitError, estimate, plan
from estimator.cli.main import main
from estimator.contract.job import read_job
from estimator.pipeline.estimation import step_time
from estimator.pipeline.run import played
from estimator.planner import amounts
from estimator.planner.levers import (
    ACTIVATIONS,
    CHECKPOINTS,
    CHOICES,
    LAYERS,
    PIPELINE,
    Extent,
    Levers,
    no_more_work,
    read_allowed,
    read_denied,
)
from estimator.planner.plan_answer import Plan
from estimator.planner.plan_bounds import Arithmetic, saved_bytes, weight_bytes
from estimator.planner.plan_candidates import Aims, Point, Seen, Trial, steps
from estimator.planner.plan_pieces import Progress, search_all
from estimator.planner.plan_search import PlanSearch, points
from estimator.planner.renting import Within, rentable
from estimator.specs.resolve import resolve
from tests.jobs import ROOT, content

TODAY = date(2026, 11, 22)
TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
}
CASES: dict[str, dict[str, Any]] = content(ROOT / "tests" / "cases" / "plans.yaml")


def asked(job: dict[str, Any], **options: Any) -> Plan:
    return plan(job, **{"today": TODAY, "top": None, **options})


def _job(case: dict[str, Any]) -> dict[str, Any]:
    return {"model": TINY, **case["job"]}


def _search(case: dict[str, Any], bounded: bool = True) -> PlanSearch:
    """The search of a case over its hardware."""
    job = read_job(_job(case))
    spec = resolve(job.model, True).spec
    allowed, denied = read_allowed(job, case.get("allow", [])), read_denied(job, case.get("deny", []))
    levers = Levers(job, spec, allowed, denied, case.get("keep_global_batch", False), case["sequences"])
    hardware = [read_job({"model": TINY, "hardware": one}).hardware for one in case["hardware"]]
    under = case.get("under")
    limits = Within(case.get("hours"), None if under is None else amounts.money(under))
    found = list(points(hardware, lambda one, name: rentable(one, name, TODAY)))
    return PlanSearch(job, levers, found, limits, True, bounded=bounded)


def _every(search: PlanSearch) -> list[tuple[Point, dict[str, Any]]]:
    return [
        (point, {**family, **work})
        for point in search.points
        for family in search.levers.families(point.extent)
        for work in search.levers.work(family)
    ]


def _brute(search: PlanSearch) -> set[Aims]:
    """The frontier of all candidates, each of them estimated in full, without any bound."""
    found: list[Aims] = []
    for point, settings in _every(search):
        try:
            answer = estimate(search.job_on(point, settings), today=TODAY)
        except (InvalidJob, NotModelled):
            continue
        if not answer.fits or answer.run is None or answer.run.hours is None or answer.cost is None:
            continue
        memory = answer.memory
        assert memory.capacity_bytes is not None
        left = steps(memory.capacity_bytes - memory.total_bytes, memory.capacity_bytes)
        seen = search.look(point, settings).aims
        assert seen is not None
        aims = Aims(answer.run.hours * 3600, float(answer.cost.total or 0), left)
        assert aims[:2] == pytest.approx(seen[:2], rel=1e-9, abs=0.005)  # an answer's money is rounded to cents
        if search.limits.hours is not None and answer.run.hours > search.limits.hours:
            continue
        if search.limits.money is not None and seen.money > float(search.limits.money.amount):
            continue
        found.append(seen._replace(slack=left))
    return {one for one in found if not any(other != one and other.beats(one) for other in found)}


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("name", CASES)
def test_bounds_lose_nothing(name: str) -> None:
    """The frontier is that of all candidates, estimated one by one."""
    search = _search(CASES[name])
    search_all(search, lambda progress: None)
    expected = _brute(_search(CASES[name]))
    assert {one.aims for one in search.found.held} == expected
    assert len(expected) >= CASES[name]["ways"]
    assert search.found.counts["simulated"] < search.found.counts["candidates"]
    assert search.found.counts["settled"] == search.found.counts["candidates"]


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("name", CASES)
def test_bounds_are_bounds(name: str) -> None:
    """No candidate takes less memory or time than is taken for granted without simulating it."""
    search = _search(CASES[name], bounded=False)
    arithmetic, spec, looked, found = Arithmetic(search.job, True), search.levers.spec, 0, 0
    times: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for point, settings in _every(search):
        seen = search.look(point, settings)
        if seen.aims is None:
            continue
        looked += 1
        run = played(search.job_on(point, settings), True)
        extent, work = point.extent, {key: settings[key] for key in (CHECKPOINTS, ACTIVATIONS)}
        kept = weight_bytes(search.job, spec, settings, extent) + saved_bytes(search.job, spec, settings, work)
        assert kept <= run.simulation.phases.peak.peak_bytes, settings
        each = search.saved.sequence_bytes(settings, point.card)
        found += each > 0
        trial = Trial([], settings, work, *search.in_any_case(settings, extent), ())
        assert trial.least(settings["training.micro_batch_size"] * each) <= run.simulation.phases.peak.peak_bytes, settings
        assert seen.time is not None
        sequences = seen.time.tokens_per_second / run.job.training.sequence_length
        least = arithmetic.seconds(settings, extent, point.card.accelerator)
        assert 0 < least <= least + trial.waits <= 1 / sequences, settings
        assert 0 < arithmetic.at_peak(settings, extent, point.card.accelerator) <= 1 / sequences, settings
        others = str({**settings, CHECKPOINTS: "", ACTIVATIONS: "", "on": point.hardware})
        for other, took in times.setdefault(others, []):
            assert not no_more_work(other, work) or took <= seen.time.step_seconds * (1 + 1e-12), (settings, other)
            assert not no_more_work(work, other) or seen.time.step_seconds <= took * (1 + 1e-12), (settings, other)
        times[others].append((work, seen.time.step_seconds))
    assert looked >= 8
    assert found >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["gpt2", "opt-125m", "bloom-560m", "gemma-3-1b", "mamba-130m", "mixtral-8x7b", "deepseek-v2-lite", "t5-small"]
)
def test_what_is_kept_is_a_bound_of_every_family(model: str) -> None:
    job = read_job({"model": model, "training": {"sequence_length": 512, "micro_batch_size": 4}})
    spec, hardware = resolve(model, True).spec, read_job({"model": model, "hardware": {"gpu": "h100", "gpus": 2}}).hardware
    levers = Levers(job, spec, {}, read_denied(job, ["offload", "training.loss", "training.implementation"]), False, 8)
    search = PlanSearch(job, levers, list(points([hardware], lambda one, name: [])), Within(None, None), True)
    held = 0
    for point, settings in _every(search):
        if settings["training.micro_batch_size"] != 4:
            continue
        try:
            peak = played(search.job_on(point, settings), True).simulation.phases.peak.peak_bytes
        except WillItFitError:
            continue
        held += 1
        kept = weight_bytes(job, spec, settings, point.extent)
        assert 0 < kept + saved_bytes(job, spec, settings, settings) <= peak, settings
    assert held >= 8


def test_what_takes_no_more_time() -> None:
    """Each is no more than itself, and nothing is no more than what does less."""
    every = [{CHECKPOINTS: a, ACTIVATIONS: b} for a, b in product((*CHOICES[CHECKPOINTS], "sqrt"), CHOICES[ACTIVATIONS])]
    for one, other in product(every, every):
        both = no_more_work(one, other) and no_more_work(other, one)
        assert both == (one == other)
    assert all(no_more_work({CHECKPOINTS: "none", ACTIVATIONS: "none"}, one) for one in every)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["rtx-4090", "2xh100"])
def test_each_row_is_what_estimate_says_of_its_job(on: str) -> None:
    found = asked({"model": TINY, "training": {"tokens": "100M", "gradient_accumulation_steps": 8}}, on=on)
    assert found.possible
    assert found.rows
    for row in found.rows:
        answer = estimate(row.job, today=TODAY)
        assert answer.fits
        assert answer.memory.total_bytes == row.total_bytes
        assert answer.time is not None
        assert answer.time.step_seconds == row.step_seconds
        assert answer.cost is not None
        assert answer.cost.total == row.total
        again = estimate({**row.job, "training": row.job["training"]}, today=TODAY)
        assert again.run == answer.run
    assert found.cheapest is not None
    assert found.quickest is not None
    assert found.rows[found.quickest].hours == min(row.hours or 0 for row in found.rows)


@pytest.mark.slow
def test_neighbours_are_worse_and_say_in_what() -> None:
    """None of a frontier's neighbours is better in one and no worse in the others; each differs in one lever."""
    found = asked({"model": "llama-3.2-1b", "training": {"tokens": "50M", "micro_batch_size": 4}}, on="rtx-4090")
    kinds = set()
    for row in found.rows:
        assert row.neighbours
        for near in row.neighbours:
            assert near.reason
            kinds.add("refused" if near.fits is None else "large" if not near.fits else "worse")
            if near.fits is False:
                assert near.short_bytes is not None
                assert "does not fit" in near.reason
            elif near.fits and near.slower is not None and near.dearer is not None:
                quicker = near.slower < -1e-9 and float(near.dearer) <= 0
                assert not quicker or (near.slack_bytes or 0) < 0, near
    assert {"large", "worse"} <= kinds


@pytest.mark.slow
def test_what_may_change_is_said() -> None:
    job = {"model": TINY, "training": {"tokens": "10M", "micro_batch_size": 4, "activation_checkpointing": "full"}}
    fixed = asked(job, on="rtx-4090", deny=["training", "parallelism", "offload"])
    assert fixed.looked.candidates == 1
    assert fixed.rows[0].changes.keys() <= {"hardware.gpu"}
    precise = asked(job, on="rtx-4090", deny=["offload"], allow=["training.precision=bf16-true"])
    assert {row.changes.get("training.precision") for row in precise.rows} == {"bf16-true"}
    none = asked(job, on="2xrtx-4090", deny=["parallelism.strategy=ddp,fsdp2", "offload"])
    assert not {"ddp", "fsdp2"} & {row.job.get("parallelism", {}).get("strategy") for row in none.rows}


@pytest.mark.slow
def test_the_batch_is_kept() -> None:
    job = {"model": TINY, "training": {"tokens": "10M", "gradient_accumulation_steps": 6}}
    for row in asked(job, on="2xrtx-4090", keep_global_batch=True).rows:
        read = read_job(row.job)
        ranks = 2 // read.parallelism.tensor
        assert read.training.micro_batch_size * read.training.gradient_accumulation_steps * ranks == 6
    assert asked(job, on="4xrtx-4090", keep_global_batch=True, deny=["parallelism.tensor"]).rows == []


@pytest.mark.slow
def test_any_hardware_within_limits() -> None:
    job = {"model": TINY, "training": {"tokens": "100M", "gradient_accumulation_steps": 8}}
    found = asked(job, memory="16GB..24GB", max_gpus=2, under="$50", within="72h", deny=["offload", "training.loss"])
    assert found.possible
    assert found.rows
    assert len({row.accelerator for row in found.rows}) > 1
    assert all((row.hours or 99) <= 72 and float(row.total or 99) <= 50 for row in found.rows)
    assert all(row.changes["hardware.gpu"] == row.accelerator for row in found.rows)
    assert found.unknown
    poor = asked(job, memory="24GB", max_gpus=1, under="$0.0001", deny=["offload", "training.loss"])
    assert not poor.rows
    assert not poor.possible


def test_an_unnamed_card_is_planned_by_what_is_left() -> None:
    found = asked({"model": TINY}, on="24GB")
    assert found.possible
    assert found.quickest is None
    assert found.cheapest is None
    assert any("how long a step takes is not known" in one for one in found.assumptions)


def test_what_does_not_fit_says_what_is_nearest() -> None:
    found = asked({"model": "llama-3.1-70b"}, on="8GB", deny=["offload", "training.loss"])
    assert found.possible is False
    assert "too much" in found.reason


def test_a_batch_that_no_layout_has_is_said() -> None:
    job = {"model": "llama-3.2-1b", "training": {"micro_batch_size": 3}}
    found = asked(job, on="2xh100", keep_global_batch=True, deny=["parallelism.tensor"])
    assert found.possible is False
    assert found.reason == "no layout has 3 sequences in a step exactly, as the job has"


def test_layers_that_do_not_divide_are_shared_out_as_its_authors_did() -> None:
    job = read_job({"model": "llama-3.1-405b", "training": {"implementation": "megatron"}})
    families = Levers(job, resolve(job.model).spec, {}, {}, False, 2048).families(Extent(8, 2048))
    stages = {family[PIPELINE]: family[LAYERS] for family in families}
    assert stages[2] is None
    assert stages[4] == (31, 32, 32, 31)
    assert stages[16] == (7, *[8] * 14, 7)
    assert 64 not in stages


def test_a_job_that_is_refused_is_not_said_not_to_fit() -> None:
    job = {"model": "llama-3-8b", "training": {"implementation": "megatron", "precision": "bf16-mixed"}}
    found = asked(job, on="8xh100")
    assert found.possible is None
    assert any("GB/s between GPUs of a node" in one for one in found.assumptions)
    assert "Megatron-Core's are megatron-bf16" in found.reason


def test_an_interrupt_keeps_what_was_found() -> None:
    def watch(progress: Progress) -> None:
        if progress.simulated == 3:
            raise KeyboardInterrupt

    found = asked({"model": TINY, "training": {"micro_batch_size": 8}}, on="rtx-4090", watch=watch)
    assert not found.complete
    assert found.looked.simulated == 3
    assert found.looked.settled < found.looked.candidates
    assert f"{found.looked.settled} candidates of {found.looked.candidates} that were settled" in found.reason
    assert not asked({"model": TINY, "training": {"micro_batch_size": 8}}, on="rtx-4090", most=2).complete


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"model": TINY, "task": "serve"}, {}, "plans are of training"),
    ({"model": TINY}, {"within": "24h"}, "needs the length of the run"),
    ({"model": TINY}, {"under": "$5"}, "needs the length of the run"),
    ({"model": TINY}, {"within": "24"}, "has no unit"),
    ({"model": TINY}, {"allow": ["training.lr=1"]}, "no such field"),
    ({"model": TINY}, {"allow": ["training.sequence_length"]}, "may change to what?"),
    ({"model": TINY}, {"allow": ["training.gradient_accumulation_steps=2"]}, "follows from the other fields"),
    ({"model": TINY}, {"allow": ["hardware.gpus=2"]}, "is not among what a plan changes"),
    ({"model": TINY}, {"deny": ["ofload"]}, "Did you mean 'offload'?"),
    ({"model": TINY}, {"deny": ["training.speed"]}, "no such field"),
    ({"model": TINY}, {"on": "24GB", "memory": "24GB"}, "some is given"),
    ({"model": TINY}, {"memory": "7.1GB"}, "no card is sold with"),
    ({"model": TINY}, {"max_gpus": 0}, "write a number from 1"),
]


@pytest.mark.parametrize(("job", "options", "says"), BAD, ids=lambda value: str(value)[:40])
def test_what_is_refused(job: dict[str, Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(WillItFitError, match=r"\w") as refused:
        plan(job, **options)
    assert says in str(refused.value)


def test_the_command_line_says_what_python_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"model": TINY, "training": {"micro_batch_size": 2}}), encoding="utf-8")
    assert main(["plan", str(path), "--on", "rtx-4090", "--top", "3", "--deny", "offload", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = plan(path, on="rtx-4090", top=3, deny=["offload"])
    assert printed == json.loads(expected.to_json())
    assert main(["plan", str(path), "--on", "rtx-4090", "--deny", "offload"]) == 0
    assert capsys.readouterr().out.startswith(
        "YES: inline model: one way beats all others\n\ncheapest, quickest, roomiest: 1 x rtx-4090"
    )
    assert main(["plan", str(path), "--on", "rtx-4090", "--within", "1h"]) == 2
    assert "training.tokens" in capsys.readouterr().err


def test_a_candidate_that_was_looked_at_is_remembered() -> None:
    search = _search(next(iter(CASES.values())))
    point, settings = _every(search)[0]
    assert isinstance(search.look(point, settings), Seen)
    assert search.look(point, settings) is search.look(point, settings)
    assert step_time(search.job_on(point, settings)) is not None


@pytest.mark.slow
def test_processes_say_what_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever settles a piece first: the answer is the same to the byte, with the numbers of what was looked at."""
    monkeypatch.setattr("estimator.planner.plan_pieces.PIECE", 4)
    monkeypatch.setattr("estimator.planner.plan_pieces.ROUND", 2)
    job = {"model": TINY, "training": {"tokens": "100M", "gradient_accumulation_steps": 8}}
    options: dict[str, Any] = {"memory": "16GB..24GB", "max_gpus": 1, "deny": ["offload", "training.loss"]}
    alone = asked(job, **options)
    with ProcessPoolExecutor(2) as executor:
        assert asked(job, **options, executor=executor).to_json() == alone.to_json()
    losing = Losing()
    assert asked(job, **options, executor=losing).to_json() == alone.to_json()
    assert losing.given > 8


class Losing(Executor):
    """Does everything at once, on what it was given as it would arrive elsewhere, and loses every third piece."""

    def __init__(self) -> None:
        self.given = 0

    def submit(self, work: Any, /, *given: Any, **_: Any) -> Future[Any]:
        self.given += 1
        found: Future[Any] = Future()
        if self.given % 3:
            found.set_result(pickle.loads(pickle.dumps(work(*pickle.loads(pickle.dumps(given))))))
        else:
            found.set_exception(OSError("the worker is gone"))
        return found
