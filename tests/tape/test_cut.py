"""Apple's cut cross-entropy: what its library allocated around its kernels, which need a GPU (tests/data/cut.yaml)."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from tests.jobs import TESTS, content, counts, job_of

CASES: list[dict[str, Any]] = content(TESTS / "data" / "cut.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cut_cross_entropy_allocates_what_its_library_does(case: dict[str, Any]) -> None:
    assert counts(estimate(job_of(case))) == case["counted"]


def test_it_holds_no_logits() -> None:
    job = {"model": "llama-3-8b", "training": {"precision": "bf16-true", "sequence_length": 8192}}
    kept = {loss: estimate({**job, "training": {**job["training"], "loss": loss}}).memory for loss in ("fused", "cut")}  # type: ignore[dict-item]
    assert kept["cut"].phases["forward"] < kept["fused"].phases["forward"] - 2 * 128256 * 4096


def test_flash_attns_loss_has_the_logits_once_and_no_float32_of_them() -> None:
    tokens, vocabulary = 8192, 128256
    job = {"model": "llama-3-8b", "training": {"precision": "bf16-true", "sequence_length": tokens}}
    kept = {loss: estimate({**job, "training": {**job["training"], "loss": loss}}).memory for loss in ("eager", "flash")}  # type: ignore[dict-item]
    eager, flash = (kept[loss].forward_end_bytes for loss in ("eager", "flash"))
    assert eager is not None
    assert flash is not None
    assert eager - flash == 4 * tokens * vocabulary - 4 * tokens  # the log-probabilities, less a float32 for each token


SEEN = {"images": {"count": 1, "height": 224, "width": 224}}
HOLDING: list[tuple[str, dict[str, Any], int]] = [
    ("gemma-2-2b", {}, 256000),
    ("gemma-4-e2b", {}, 262144),
    ("granite-3.0-8b", {}, 49155),
    ("command-r", {}, 256000),
    ("ministral-3-3b", {}, 131072),
    ("qwen2.5-vl-3b", SEEN, 151936),
]


@pytest.mark.parametrize(("model", "more", "vocabulary"), HOLDING, ids=[model for model, *_ in HOLDING])
def test_logits_that_change_and_those_of_models_that_see_are_not_held_either(
    model: str, more: dict[str, Any], vocabulary: int
) -> None:
    training = {"precision": "bf16-true", "sequence_length": 8192, "adapter": {}, **more}
    kept = {loss: estimate({"model": model, "training": {**training, "loss": loss}}).memory for loss in ("eager", "cut")}
    assert kept["cut"].phases["forward"] < kept["eager"].phases["forward"] - 4 * 8192 * vocabulary
