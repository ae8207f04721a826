"""Models of families that are here, counted by torch as if they were of none: to the byte what is derived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from estimator import InvalidJob, estimate
from estimator.contract.job import Job
from estimator.families import spec_class
from estimator.families.other import other
from estimator.parallel.topology import topology
from estimator.simulation.simulation import Simulation, simulate
from estimator.specs.resolve import resolve
from estimator.tape.gpu import AMPERE

pytestmark = pytest.mark.torch

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "counted.yaml").read_text(encoding="utf-8"))
EVERY = [(model, job) for model in TABLE["models"] for job in TABLE["jobs"]]
ASKED = [pair for i, pair in enumerate(EVERY) if i % len(TABLE["jobs"]) == (i // len(TABLE["jobs"])) % len(TABLE["jobs"])]
"""Each model once, each job about as often."""


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WILLITFIT_CACHE", "")


def _config(model: str) -> dict[str, Any]:
    given = {"model_type": model, **TABLE["shared"], **TABLE["models"][model]}
    known = spec_class(model).keys()
    return {name: value for name, value in given.items() if name in known and value is not None}


def _moments(found: Simulation) -> dict[str, int]:
    steps = [phase for phase in found.phases.phases if phase.name != "load"]
    highest = {name: max(p.peak_bytes for p in steps if p.name == name) for name in (p.name for p in steps)}
    forward = [p for p in steps if p.name == "forward"][-1]
    return {"resident": steps[0].start_bytes, "forward_end": forward.end_bytes, **highest}


def compared(model: str, training: str) -> tuple[dict[str, int], dict[str, int], str]:
    """What is derived, what is counted, and how."""
    config = _config(model)
    asked = {"model": config, "training": {"sequence_length": 64, **TABLE["jobs"][training]}}
    spec = resolve(config).spec
    job = Job.model_validate(estimate(asked).job)
    place = topology(job, spec)
    as_other = other({**spec.config(), "model_type": model})
    found = simulate(job, as_other, place, AMPERE)
    assert found.counted is not None
    return _moments(simulate(job, spec, place, AMPERE)), _moments(found), found.counted.how


@pytest.mark.share(8)
@pytest.mark.parametrize(("model", "training"), ASKED, ids=[" ".join(pair) for pair in ASKED])
def test_what_is_counted_is_what_is_derived(model: str, training: str) -> None:
    derived, by_torch, how = compared(model, training)
    assert by_torch == derived, how


@pytest.mark.parametrize("recomputed", ["full", "none"])
def test_adapters_that_no_gradient_reaches_are_refused(recomputed: str) -> None:
    training = {"sequence_length": 16, "activation_checkpointing": recomputed, "adapter": {"targets": ["fc1"]}}
    with pytest.raises(InvalidJob, match=r"no adapted layer \(fc1\) has a part in the loss"):
        estimate({"model": "lfm2-vl-450m", "hardware": {"gpus": 1}, "training": training})
