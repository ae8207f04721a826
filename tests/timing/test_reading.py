"""Small batches on cards with few multiprocessors: what is fitted to published runs, and the runs that are held out."""

from __future__ import annotations

import numpy as np
import pytest

from estimator import estimate
from estimator.hardware.accelerator import accelerator
from estimator.timing.measured import reading, shared
from tests.fit_reading import CARD, changed, errors, rows
from tests.served_speeds import job_of


@pytest.mark.slow
@pytest.mark.parametrize("kind", [fact.kind for fact in shared().reading])
def test_rows_give_the_numbers(kind: str) -> None:
    """A tenth more or less is further from the rows."""
    used = rows()
    least = np.abs(errors(used)).mean()
    for by in (0.9, 1.1):
        with changed(kind, by):
            assert np.abs(errors(used)).mean() > least


@pytest.mark.slow
def test_rows_held_out() -> None:
    """A dense model of 32B, and mixtures on one GPU, four and eight."""
    found = np.abs(np.expm1(errors(rows(held=True))))
    assert np.median(found) < 0.08
    assert np.mean(found <= 0.3) == 1


def test_the_bandwidth_binds_elsewhere() -> None:
    assert not reading(accelerator("h100"))
    job = job_of(rows()[0])
    assert reading(accelerator(CARD))
    slow, fast = (estimate(job | {"hardware": {"gpu": gpu}}).serving for gpu in (CARD, "h100"))
    assert slow
    assert fast
    assert slow.decode.step_seconds > fast.decode.step_seconds
