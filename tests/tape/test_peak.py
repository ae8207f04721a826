"""The peak: where it is, and what is alive there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from estimator import Answer, WillItFitError, estimate
from tests.jobs import cases, job_of
from tests.tapes import SMALL, assert_folded_as_unrolled

pytestmark = pytest.mark.slow

TABLE = [job_of(case) for case in cases("real_steps")] + [case["job"] for case in cases("golden")]
MODEL = {**SMALL, "num_hidden_layers": 12, "vocab_size": 64}


def answer(model: dict[str, Any], **settings: Any) -> Answer:
    return estimate({"model": {**MODEL, **model}, "training": {"precision": "bf16-true", **settings}})


@pytest.mark.share(4)
@pytest.mark.parametrize("job", TABLE, ids=lambda job: str(job["model"])[:40])
def test_the_tensors_at_the_peak_are_the_peak(job: dict[str, Any]) -> None:
    try:
        memory = estimate(job).memory
    except WillItFitError:
        return
    peak = memory.peak
    assert sum(kind.bytes for kind in peak.tensors) + peak.rest_bytes == memory.peak_bytes
    assert all(kind.bytes == kind.count * kind.each_bytes > 0 for kind in peak.tensors)
    assert [kind.bytes for kind in peak.tensors] == sorted((kind.bytes for kind in peak.tensors), reverse=True)
    assert peak.rest_count >= 0
    assert peak.rest_bytes <= peak.rest_count * peak.tensors[-1].bytes
    assert peak.phase == memory.peak_phase
    assert peak.where == memory.phase_peaks[peak.phase].where
    assert memory.phases.keys() == memory.phase_peaks.keys()
    named = Counter[str]()
    for kind in peak.tensors:
        named[kind.component] += kind.bytes
    assert all(named[component] <= memory.at_peak[component] for component in named)


@pytest.mark.share(4)
@pytest.mark.parametrize("job", [job for job in TABLE if job.get("task") != "serve"], ids=lambda job: str(job["model"])[:40])
def test_layers_that_share_a_slot_are_told_apart(job: dict[str, Any]) -> None:
    """Places and tensors are those of a tape on which every layer is played by itself."""
    assert_folded_as_unrolled(job)


def test_a_large_vocabulary_peaks_in_the_loss() -> None:
    memory = answer({"vocab_size": 128_256}, micro_batch_size=8).memory
    assert memory.peak.part == memory.phase_peaks["forward"].part == "head and loss"
    assert memory.peak.tensors[0].component == "logits_and_loss"
    assert memory.peak.tensors[0].shape == [8 * 2048, 128_256]


def test_backward_gathers_gradients_from_the_last_layer_to_the_first() -> None:
    """Where recomputed layers leave only gradients behind, the first has most of them; in forward it is the last layer."""
    memory = answer({}, activation_checkpointing="full").memory
    assert memory.peak.where.startswith("layers[0] of 12, at ")
    assert memory.phase_peaks["forward"].where.startswith("layers[11] of 12, at ")


def test_of_a_recomputed_segment_the_last_layer_peaks() -> None:
    """Three segments of four layers: the first segment runs backward last, and holds most when it has just been run again."""
    memory = answer({}, activation_checkpointing="sqrt", sequence_length=4096).memory
    assert memory.peak.where.startswith("layers[3] of 12, at ")


def test_what_is_recomputed_is_called_so() -> None:
    """Adapters leave small gradients: the last layer peaks while it is run again, when most inputs are still kept."""
    case = next(case for case in cases("fake_steps") if case["name"] == "nemotron lora on all linear layers")
    assert estimate(job_of(case)).memory.phase_peaks["backward"].where == "layers[3] of 4, at mm, recomputed"


def test_the_optimizer_has_its_place() -> None:
    memory = answer({}, optimizer_implementation="foreach", sequence_length=64).memory
    assert memory.peak.where == "optimizer, at _foreach_sqrt"
    assert answer({}, sequence_length=64).memory.phase_peaks["optimizer_step"].where == "nothing allocated"
