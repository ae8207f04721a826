"""DDP and ZeRO: what DeepSpeed and torch hold per parameter, by arithmetic that anyone can repeat.

P is the number of parameters; every model here is large enough that buckets and rounding are small beside it. The
lines that each figure follows from are in docs/zero.md.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from estimator import Answer, Job, estimate
from estimator.families import count
from estimator.parallel.topology import topology
from estimator.pipeline.defaults import with_defaults
from estimator.simulation.trace import trace
from estimator.specs.resolve import resolve
from tests.jobs import cases, counts, job_of
from tests.judge.real import ddp_step

MODEL = "llama-3-8b"
P = 8_030_261_248
SHORT = 128
"""Tokens: so few that activations do not matter."""


def answer(strategy: str, gpus: int, **training: Any) -> Answer:
    settings = {"sequence_length": SHORT, "optimizer_implementation": "foreach", **training}
    hardware = {"gpu": "h200", "gpus": gpus}
    return estimate({"model": MODEL, "hardware": hardware, "parallelism": {"strategy": strategy}, "training": settings})


GB = 10**9
LEDGER = [
    # strategy, GPUs, moment, bytes per parameter, bytes beside them
    ("ddp", 2, "resident", 4 + 8 + 4, 0),  # float32 weights, two states, the reducer's buckets
    ("zero1", 1, "resident", 2 + 4 + 8, 0),  # bf16 weights, their float32 copy, two states
    ("zero1", 8, "resident", 2 + 12 / 8, 0),
    ("zero1", 8, "backward", 2 + 12 / 8 + 2 + 2 / 8, 0),  # all gradients, this rank's part of them
    ("zero1", 8, "optimizer_step", 2 + 12 / 8 + 8 / 8, 0),  # this rank's gradients, flattened, and as float32
    ("zero2", 1, "optimizer_step", 2 + 12 + 8, 0),
    ("zero2", 8, "resident", 2 + 12 / 8, 0),
    ("zero2", 8, "optimizer_step", 2 + 12 / 8 + 8 / 8, 0),
    ("zero3", 8, "resident", 2 / 8 + 12 / 8 + 2 / 8, GB),  # weights, their copies and states, gradients; the bucket
    ("zero3", 8, "optimizer_step", 2 / 8 + 12 / 8 + 2 / 8, GB + (4 + 4) * GB),  # a sub-group's gradients and temporaries
    ("fsdp2", 8, "resident", 12 / 8, 0),
]
MIXED = [
    # precision, strategy, GPUs, moment, bytes per parameter
    ("16-mixed", "zero2", 8, "resident", 2 + 12 / 8),
    ("deepspeed-fp16", "zero2", 8, "optimizer_step", 2 + 12 / 8 + 8 / 8),
    ("deepspeed-fp16", "zero1", 8, "backward", 2 + 12 / 8 + 2 + 2 / 8),
    ("16-mixed", "ddp", 2, "resident", 4 + 8 + 4),
    ("16-mixed", "none", 1, "optimizer_step", 4 + 8 + 4 + 4),  # and the roots of second moments
    ("megatron-bf16", "ddp", 2, "resident", 2 + 4 + 4 + 8),  # weights, gradients, their float32 copies, two states
    ("megatron-bf16", "none", 1, "optimizer_step", 18 + 4),
    ("megatron-fp16", "none", 1, "resident", 2 + 2 + 4 + 8),
    ("megatron-fp16", "none", 1, "optimizer_step", 16 + 4 + 4),  # float32 copies of the gradients
]


@pytest.mark.parametrize(("strategy", "gpus", "moment", "per_parameter", "beside"), LEDGER)
def test_the_ledger(strategy: str, gpus: int, moment: str, per_parameter: float, beside: int) -> None:
    assert counts(answer(strategy, gpus))[moment] == pytest.approx(per_parameter * P + beside, rel=1e-4)


@pytest.mark.parametrize(("precision", "strategy", "gpus", "moment", "per_parameter"), MIXED)
def test_the_ledger_of_precisions(precision: str, strategy: str, gpus: int, moment: str, per_parameter: float) -> None:
    found = counts(answer(strategy, gpus, precision=precision))
    assert found[moment] == pytest.approx(per_parameter * P, rel=1e-4)


@pytest.mark.parametrize("view", [False, True])
def test_ddp_holds_its_gradients_twice_unless_they_are_views(view: bool) -> None:
    job = {
        "model": "llama-3.2-1b",
        "hardware": {"gpus": 2},
        "training": {"sequence_length": SHORT, "gradient_accumulation_steps": 2},
    }
    memory = estimate({**job, "parallelism": {"strategy": "ddp", "gradient_as_bucket_view": view}}).memory
    alone = estimate({**job, "hardware": {"gpus": 1}}).memory
    gradients = 4 * 1_235_814_400
    assert memory.phases["backward"] - alone.phases["backward"] == (0 if view else gradients)


def test_zero_2_holds_a_part_of_the_gradients_where_zero_1_holds_all() -> None:
    one, two = (answer(s, 8, gradient_accumulation_steps=4).memory.phases["backward"] for s in ("zero1", "zero2"))
    assert one - two > (2 - 2 * 2 / 8) * P - GB  # all in bf16; twice an eighth of them; the bucket


def test_a_second_bucket_is_as_large_as_the_first() -> None:
    spread = {"strategy": "zero2", "zero_reduce_bucket_size": 10**9}
    one, two = (
        estimate(
            {
                "model": "llama-3.2-1b",
                "hardware": {"gpus": 8},
                "training": {"precision": "deepspeed-bf16", "sequence_length": SHORT},
                "parallelism": {**spread, "zero_overlap_comm": overlaps},
            }
        ).memory.phases["backward"]
        for overlaps in (False, True)
    )
    assert two - one == 2 * 10**9


def test_zero_3_needs_least_and_zero_1_most() -> None:
    peaks = [answer(s, 8).memory.peak_bytes for s in ("zero3", "zero2", "zero1", "ddp")]
    assert peaks == sorted(peaks)


def test_fsdp2_takes_the_buffers_that_it_really_holds() -> None:
    """At the peak of a step two layers are gathered: the one that computes and the one that comes next."""
    layer = 2 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    memory = answer("fsdp2", 8).memory
    assert memory.at_peak["communication_buffers"] > layer
    kept = estimate(
        {
            "model": MODEL,
            "hardware": {"gpu": "h200", "gpus": 8},
            "parallelism": {"strategy": "fsdp2", "reshard_after_forward": False},
            "training": {"sequence_length": SHORT},
        }
    ).memory
    assert kept.forward_end_bytes - memory.forward_end_bytes == pytest.approx(32 * layer, rel=1e-4)


OVER_TWO = [
    case
    for case in cases("real_steps")
    if case["name"] in ("llama ddp accumulated", "llama ddp with views", "llama ddp with lora")
]


UNEVEN = {
    "model_type": "llama",
    "hidden_size": 272,
    "intermediate_size": 700,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1003,
}
"""A model whose parameters divide by few numbers of ranks."""
RANKS = (2, 3, 4, 8, 16, 64)
"""No more than the shortest parameter has rows: from there on FSDP2 gathers more padding with each rank."""


def uneven(ranks: int, spread: dict[str, Any], precision: str = "bf16-mixed") -> dict[str, Any]:
    hardware = {"gpus": min(ranks, 8), "nodes": max(1, ranks // 8)}
    training = {"precision": precision, "sequence_length": 256}
    return {"model": UNEVEN, "hardware": hardware, "training": training, "parallelism": spread}


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"])
def test_more_ranks_never_need_more(strategy: str, precision: str) -> None:
    found = [estimate(uneven(ranks, {"strategy": strategy}, precision)).memory for ranks in RANKS]
    for needed in ([m.resident_bytes for m in found], [m.peak_bytes for m in found]):
        assert needed == sorted(needed, reverse=True)


@pytest.mark.parametrize("ranks", [*RANKS, 512])
def test_shards_sum_to_the_whole_and_padding(ranks: int) -> None:
    """The first rank's shards, as often as there are ranks, are the parameters, and rows that FSDP2 fills up."""
    job = Job.model_validate(uneven(ranks, {"strategy": "fsdp2"}, "32-true"))
    spec = resolve(job.model).spec
    job = with_defaults(job, spec)[0]
    parameters = trace(job, spec, topology(job, spec)).parameters
    held = sum(p.times * p.local.numel for p in parameters)
    padding = sum(p.total // p.tensor.shape[0] * (-p.tensor.shape[0] % ranks) for p in parameters)
    assert sum(p.total for p in parameters) == count(spec)
    assert ranks * held == count(spec) + padding
    resident = estimate(job).memory.resident_bytes
    assert 12 * held <= resident < 12 * held + 512 * 4 * sum(p.times for p in parameters)  # weights and two states; rounding


def test_a_degree_of_one_changes_nothing() -> None:
    ones = dict.fromkeys(("data", "tensor", "pipeline", "context", "expert"), 1)
    assert estimate(uneven(1, ones)).memory == estimate(uneven(1, {})).memory


@pytest.mark.share(2)
@pytest.mark.parametrize("case", OVER_TWO, ids=lambda case: case["name"])
def test_ddp_over_real_processes(tmp_path: Path, case: dict[str, Any]) -> None:
    """Two processes with gloo between them: each allocates what the estimate says, to the byte."""
    said = estimate(job_of(case))
    job = Job.model_validate(said.job)
    play = partial(ddp_step, world=2, meeting=str(tmp_path / "meeting"), job=job, spec=resolve(job.model).spec)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(play, range(2))) == [counts(said)] * 2
