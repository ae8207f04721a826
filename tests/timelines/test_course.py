"""A run event by event is what its tape says: the same peak, of the same parts, in the same layers as layers one by one have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from estimator.hardware.capability import gpu
from estimator.pipeline.run import played
from estimator.simulation.attribution import attribution
from estimator.simulation.trace import trace
from estimator.tape.replay import replay
from estimator.tape.tape import Tape
from estimator.timelines.course import Course, course
from estimator.timelines.timeline import recorded, timeline_of
from tests.jobs import cases, job_of
from tests.records import of_every_family
from tests.tapes import SMALL, simulated, unrolled

SAMPLE = [*of_every_family("fake_steps", 24), *cases("real_steps")[::24]]
MORE: list[dict[str, Any]] = [
    {"model": "llama-3-8b", "task": "serve", "serving": {"engine": "transformers"}},
    {"model": "llama-3-8b", "task": "serve", "serving": {"engine": "vllm"}, "hardware": {"gpu": "h100"}},
    {"model": "gpt2", "training": {"evaluation": {"micro_batch_size": 4}}},
    {"model": "llama-3.2-1b", "training": {"objective": {"type": "dpo"}}},
    *(
        {
            "model": model,
            "hardware": {"gpu": "h100", "gpus": 8},
            "training": {
                "implementation": "megatron",
                "precision": "megatron-bf16",
                "gradient_accumulation_steps": 8,
                "activation_checkpointing": "full",
            },
            "parallelism": {"tensor": 2, "pipeline": 4},
        }
        for model in ("llama-3-8b", "mixtral-8x7b")
    ),
]


def sampled() -> Iterator[Any]:
    yield from (pytest.param(job_of(case), id=case["name"]) for case in SAMPLE)
    yield from (pytest.param(job, id="more") for job in MORE)


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("job", list(sampled()))
def test_its_highest_is_the_answer_s_peak(job: dict[str, Any]) -> None:
    run = played(job, True)
    step = recorded(run)
    assert step.course.unmatched == 0
    found, why = timeline_of(step, 0), run.simulation.why
    assert found.peak.bytes == max(step.live) == run.simulation.phases.peak.peak_bytes
    assert found.peak.components == why.at_peak
    for at, total in enumerate(found.points.total):
        assert total == sum(row[at] for row in found.points.components.values())
    phases = {phase.name: phase.peak_bytes for phase in run.simulation.phases.phases}
    for phase in found.phases:
        assert phase.start_bytes <= phase.peak_bytes <= found.peak.bytes
        if [one.name for one in found.phases].count(phase.name) == 1 == [*phases].count(phase.name):
            assert phase.peak_bytes == max(p.peak_bytes for p in run.simulation.phases.phases if p.name == phase.name)


ALONE: list[dict[str, Any]] = [
    {},
    {"training": {"activation_checkpointing": "full", "gradient_accumulation_steps": 2}},
    {"training": {"activation_checkpointing": {"every": 2}}},
    {"training": {"activation_checkpointing": {"segments": 2}}},
    {"training": {"adapter": {"rank": 4}, "precision": "bf16-mixed", "evaluation": {"micro_batch_size": 1}}},
    {"training": {"precision": "bf16-true"}, "hardware": {"gpus": 4}, "parallelism": {"strategy": "fsdp2"}},
    {"hardware": {"gpus": 2}, "parallelism": {"strategy": "ddp"}},
]


@pytest.mark.parametrize("change", ALONE, ids=str)
def test_each_layer_has_what_it_has_alone(change: dict[str, Any]) -> None:
    """The same tensors in the same order as on a tape on which every layer is by itself."""
    job = {"model": {**SMALL, "num_hidden_layers": 7}, **change}
    job["training"] = {"sequence_length": 64, "activation_checkpointing": "none", **job.get("training", {})}
    assert_as_alone(job)


def test_each_pass_of_a_loop_within_a_layer_has_what_it_has_alone() -> None:
    """Chunks of tokens go forward where a layer runs again, too, and backward from the last."""
    [job] = [job_of(case) for case in cases("fake_steps") if case["name"] == "kimi_linear small mixed checkpointed"]
    assert_as_alone(job)


def assert_as_alone(job: dict[str, Any]) -> None:
    folded, alone = course(simulated(job)[0]), course(unrolled(job)[0])
    assert [folded.size(event) for event in folded.events] == [alone.size(event) for event in alone.events]
    assert _allocated(folded) == _allocated(alone)
    assert Counter(_lives(folded)) == Counter(_lives(alone))


def test_each_layer_of_a_pipeline_has_what_it_has_alone() -> None:
    """Megatron-Core's last stage: what is alive at its peak."""
    job = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "h100", "gpus": 8},
        "training": {"implementation": "megatron", "precision": "megatron-bf16", "gradient_accumulation_steps": 8},
        "parallelism": {"tensor": 2, "pipeline": 4},
    }
    run = played(job, True)
    alone = trace(run.job, run.model.spec, run.place, gpu(run.job, run.card), unrolled=True).tape
    simulated_alone = replay(alone)
    found = timeline_of(recorded(run), 0).peak
    assert found.bytes == simulated_alone.peak.peak_bytes
    assert found.components == attribution(alone, simulated_alone).at_peak


def _allocated(found: Course) -> list[tuple[Any, ...]]:
    return [_what(found.tape, birth.storage, birth.layer, birth.recomputed) for birth in found.births]


def _lives(found: Course) -> list[tuple[Any, ...]]:
    """Each tensor with the events of its life."""
    tape = found.tape
    return [(tape.operations[birth.storage], birth.layer, birth.born, birth.died) for birth in found.births]


def _what(tape: Tape, storage: int, *said: Any) -> tuple[Any, ...]:
    return tape.operations[storage], tape.components[storage], tape.forms[storage], tape.sizes[storage], *said
