"""Trainings that were watched (tests/data/watched_runs.jsonl, which `watch(record=)` wrote): estimates are held against them."""

from __future__ import annotations

import json

import pytest

from estimator import estimate
from estimator.measured.compare import LOOSE, SAME
from estimator.watching.run_record import RunRecord
from tests.jobs import ROOT

LINES = (ROOT / "tests" / "data" / "watched_runs.jsonl").read_text(encoding="utf-8").splitlines()
RUNS = [RunRecord.model_validate(json.loads(line)) for line in LINES]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_watched_run_is_predicted(run: RunRecord) -> None:
    """Within what an explanation takes for no difference; of what is reserved that hangs on how blocks fall."""
    assert run.differences == []
    assert not run.out_of_memory
    memory = estimate(run.job).memory
    assert run.peak_allocated_bytes is not None
    assert abs(memory.peak_bytes - run.peak_allocated_bytes) <= SAME * run.peak_allocated_bytes
    if run.peak_reserved_bytes is not None and memory.reserved_bytes is not None:
        assert abs(memory.reserved_bytes - run.peak_reserved_bytes) <= LOOSE * run.peak_reserved_bytes
