"""Numbers that were fitted to measurements: to which, that these give the number, and that none of them is held out.

What is fitted to aiconfigurator-core's tables, which are not here, is fitted anew where TABLES_OF_KERNELS names the folder in
which its wheel was unpacked.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from estimator.contract.errors import NotModelled
from estimator.contract.reading import load_yaml
from estimator.facts import catalogue
from estimator.facts.fact import FittedTo, MeasuredFact
from estimator.timing import step
from estimator.timing.measured import FOLDER, Sourced, curves, load, shared
from tests import held_out
from tests.constants import BY_EYE, constants, parameters
from tests.fit_steps import FITS, facts, loaded_runs, measured_seconds, seconds_under_load, sustained_beside_training
from tests.measured_runs import a100_runs, fsdp1_runs
from tests.published import published

EVERYTHING = [*constants(), *parameters()]


def test_files_are_all_walked() -> None:
    """Every file that says what its numbers were fitted to. Those of timing/ that do not hold a table of readings, and counts."""
    rooms = Path(step.__file__).parent.parent
    files = {path.relative_to(rooms).as_posix() for path in rooms.rglob("*.yaml") if "fitted_to" in path.read_text("utf-8")}
    own = {f"timing/curves/{name}.yaml" for name in catalogue.names(FOLDER)}
    assert files == own | {
        "timing/efficiency.yaml",
        "timing/ggml.yaml",
        "timing/host.yaml",
        "timing/loader.yaml",
        "timing/shared.yaml",
        "runtime/overheads.yaml",
        "host/facts.yaml",
        "timing/run_length.yaml",
        "hardware/nvlink.yaml",
        "pricing/energy.yaml",
        "pricing/spot.yaml",
        "serving/sglang/facts.yaml",
        "serving/tensorrt_llm/facts.yaml",
        "serving/vllm/facts.yaml",
    }
    assert {path.name for path in FOLDER.parent.glob("*.yaml")} - {Path(file).name for file in files} == {
        "all_reduce.yaml",
        "optimizer.yaml",
    }


@pytest.mark.parametrize(("where", "fact"), EVERYTHING, ids=[f"{at} {where}" for at, (where, _) in enumerate(EVERYTHING)])
def test_a_fitted_number_names_its_rows(where: str, fact: Sourced | MeasuredFact) -> None:
    """By table and name; what says "median", "fit" or "line" of its source is fitted to something."""
    fitted_to: FittedTo = fact.fitted_to
    if fitted_to == "nothing":
        assert not re.search(r"\b(median|mean|tenths|twentieths|least squares|fitted to|a line)\b", fact.source), where
        return
    assert fitted_to
    for rows in fitted_to:
        assert rows.rows
        assert (rows.how == "by eye") == (where in BY_EYE)
        if rows.table in held_out.SHORT or rows.table in held_out.TABLES:
            names = held_out.SHORT.get(rows.table) or held_out.TABLES[rows.table][0]()
            found = held_out.fitted_rows((rows,), rows.table)
            assert found
            assert set(found) <= set(names)
            looked_at = rows.how == "by eye" and rows.rows == ("*",)
            assert looked_at or not [name for name in found if held_out.held_out(rows.table, name)]
        else:
            assert rows.table in held_out.WHEEL
            assert rows.rows == ("*",)


def test_every_table_that_is_fitted_to_says_what_is_held_out() -> None:
    fitted = {rows.table for _, fact in EVERYTHING if fact.fitted_to != "nothing" for rows in fact.fitted_to}
    assert fitted == {*held_out.listed(), *held_out.SHORT}
    assert set(held_out.listed()) == {*held_out.TABLES, *held_out.WHEEL}


@pytest.mark.parametrize("table", held_out.TABLES)
def test_a_third_is_held_out_by_the_rule(table: str) -> None:
    """As many as the rule says, which are the rows that are listed."""
    names, rule = held_out.TABLES[table]
    held = {name for name in names() if held_out.held_out(table, name)}
    assert len(names()) == len(set(names()))
    assert len(held) > 0.3 * len(names())
    listed = held_out.listed()[table]
    if rule is None:
        assert set(listed["used"]) == set(names()) - held
    else:
        assert held == rule()
        assert set(listed.get("held_out", held)) == held


def test_a_row_is_held_out_by_its_name() -> None:
    """A third of any names; whole groups are not divided."""
    names = [f"{m} {n} {k}" for m in range(20) for n in range(20) for k in range(20)]
    assert sum(map(held_out.by_hash, names)) == pytest.approx(len(names) / 3, rel=0.05)
    groups = {"a": ["1", "2"], "b": ["3", "4", "5"], "c": ["6"]}
    held = held_out.whole_groups(groups)
    assert len(held) in (1, 2, 3)
    assert all(set(rows) <= held or not set(rows) & held for rows in groups.values())
    held = held_out.of_series(names[:30])
    assert len(held) == 10
    assert all(len(held & set(names[at : at + 3])) == 1 for at in range(0, 30, 3))


@pytest.mark.parametrize("name", [name for name in FITS if name != "under_load"])
def test_the_rows_give_the_number(name: str) -> None:
    """To as many digits as its file has."""
    fact = facts()[name]
    value, ends = FITS[name]()
    assert value == pytest.approx(fact.value, abs=0.51 * 10 ** -_digits(fact.value))
    for found, stated in zip(ends or (), fact.range or (), strict=False):
        assert found == pytest.approx(stated, abs=0.51 * 10 ** -_digits(stated))


def _digits(value: float) -> int:
    """Decimals that a number is written with."""
    return len(f"{value:g}".partition(".")[2])


def test_a_b200s_products_beside_training() -> None:
    fact = load("b200").matmul["bfloat16"].sustained
    value, low, _, rows = sustained_beside_training()
    assert (fact.value, fact.low) == pytest.approx((value, low), abs=6e-4)
    assert fact.fitted_to != "nothing"
    assert [one.model_dump(mode="json") for one in fact.fitted_to] == [rows]


@pytest.mark.slow
def test_half_of_the_rows_took_longer_under_load() -> None:
    """The number is a median: with half a hundredth less, half of the runs take longer than said; with as much more, not half."""
    value, runs = shared().under_load[0].value, list(loaded_runs())
    longer = [0, 0]
    for run in runs:
        seconds, found = seconds_under_load(run), measured_seconds(run)
        for side, ratio in enumerate((value - 0.006, value + 0.006)):
            longer[side] += found > seconds(ratio)
    assert longer[0] > len(runs) / 2 > longer[1]


def test_no_judged_run_is_timed_by_shares_chosen_by_eye() -> None:
    """They are read for cards that no curves time, and no measured run is on one."""
    cards = {run["job"]["hardware"]["gpu"] for run in (*a100_runs(), *fsdp1_runs())}
    cards |= {run.job["hardware"]["gpu"] for run in published()} | {"b200"}
    assert all(curves(card) for card in cards)
    with pytest.raises(NotModelled):
        curves("mi300x")


TABLES = os.environ.get("TABLES_OF_KERNELS", "")


@pytest.mark.skipif(not TABLES, reason="TABLES_OF_KERNELS does not name the folder of aiconfigurator-core 0.12.0")
@pytest.mark.parametrize("name", catalogue.names(FOLDER))
def test_the_tables_give_the_curves(name: str) -> None:
    """Needs pandas, pyarrow and scipy besides."""
    fit_efficiency = pytest.importorskip("tests.fit_efficiency")
    found, _ = fit_efficiency.fit(name, Path(TABLES) / fit_efficiency.DATA)
    assert yaml.safe_load(fit_efficiency.written(found)) == load_yaml(FOLDER / f"{name}.yaml")
