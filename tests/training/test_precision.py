"""Precision recipes: what they keep per parameter, and what depends on them beside bytes."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.errors import InvalidJob


def answer(**training: Any) -> Any:
    settings = {"sequence_length": 64, "activation_checkpointing": "none", **training}
    return estimate({"model": "gpt2", "hardware": {"gpu": "a100-80gb"}, "training": settings})


def test_tf32_changes_the_time_and_no_bytes() -> None:
    plain, fast = answer(precision="32-true"), answer(precision="32-true", tf32=True)
    assert plain.memory == fast.memory
    seconds = [{part.name: part.seconds for part in made.time.parts} for made in (plain, fast)]
    for same in ("optimizer", "memory-bound kernels"):
        assert seconds[0][same] == seconds[1][same]
    # small products do not reach the tensor cores' peak, so less is gained than the ratio of the peaks
    assert 1.5 < seconds[0]["matrix products"] / seconds[1]["matrix products"] < 156 / 19.5


def test_a_part_that_is_as_the_recipe_has_it_changes_nothing() -> None:
    named = {"weights": "fp32", "gradients": "fp32", "optimizer_states": "fp32"}
    assert answer(dtypes=named).memory == answer().memory


@pytest.mark.parametrize("part", ["weights", "gradients", "master_weights", "optimizer_states"])
@pytest.mark.parametrize("precision", ["32-true", "16-true", "16-mixed", "megatron-bf16"])
def test_no_part_is_ignored(precision: str, part: str) -> None:
    """Of the three types at least one is none that the recipe could have."""
    seen = set()
    for name in ("fp32", "bf16", "fp16"):
        try:
            seen.add(answer(precision=precision, dtypes={part: name}).memory.resident_bytes)
        except InvalidJob as error:
            seen.add(error.where)
    assert f"training.dtypes.{part}" in seen


def test_loss_scaling_keeps_two_numbers() -> None:
    assert answer(precision="16-mixed").memory.resident_bytes - answer().memory.resident_bytes == 2 * 512
