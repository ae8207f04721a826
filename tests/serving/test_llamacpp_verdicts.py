"""What llama.cpp ran on which machine, and what did not fit: 105 verdicts that nothing was made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.reading import load_yaml
from estimator.hardware.parse import read_hardware
from tests.jobs import TESTS

TABLE = load_yaml(Path(TESTS) / "data" / "llamacpp_verdicts.yaml")
RIGHT = 0.95
"""Share of verdicts that are right at least; each of the others says why it is not."""


@pytest.mark.parametrize("machine", TABLE["machines"], ids=lambda machine: str(machine["hardware"]))
def test_a_machine_runs_what_it_ran(machine: dict[str, Any]) -> None:
    hardware = read_hardware(str(machine["hardware"])).hardware.model_dump(exclude_unset=True)
    for number, ((model, weights), ran) in enumerate(zip(TABLE["files"], machine["ran"], strict=True)):
        serving = {"engine": "llama.cpp", "weights": weights, "context": 8192}
        answer = estimate({"model": model, "task": "serve", "hardware": hardware, "serving": serving})
        assert (answer.fits is ran) == (number not in machine.get("wrong", {})), (model, weights, answer.reason)


def test_most_are_right() -> None:
    wrong = sum(len(machine.get("wrong", {})) for machine in TABLE["machines"])
    every = len(TABLE["files"]) * len(TABLE["machines"])
    assert every == 105
    assert 1 - wrong / every >= RIGHT
