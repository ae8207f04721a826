"""What the judge does not play as a job says is refused by the judge itself, whoever asks it."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Job, NotModelled, estimate
from estimator.contract.errors import WillItFitError
from estimator.contract.job import Offload, Parallelism, Training
from estimator.pipeline.defaults import with_defaults
from estimator.specs.resolve import resolve
from estimator.verify.compare import verify
from estimator.verify.playable import HONOURED, WITHOUT_BYTES, refuse_unplayable
from estimator.verify.step import fake_step
from tests.jobs import cases, job_of, table
from tests.judge.real import real_step

TABLE = table("unplayable")
MODEL = TABLE["model"]
UNREAD = {
    "training": {
        *("fp8", "optimizer_wide_embeddings", "expert_capacity_factor", "expert_imbalance", "mtp_num_layers"),
        *("transformers_release", "quantization_compute", "quantized_experts", "upcast_unquantized"),
    },
    "parallelism": {
        *("pipeline", "context", "expert", "expert_tensor", "context_exchange", "pipeline_schedule", "model_chunks"),
        *("micro_batch_group", "pipeline_layers", "gradient_as_bucket_view"),
        *("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather"),
        *("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients"),
        *("zero_reduce_bucket_size", "zero_overlap_comm"),
    },
    "offload": set[str](),
}


def rows(judge: str) -> list[Any]:
    return [pytest.param(where, row, id=f"{where} {row}"[:100]) for where, given in TABLE[judge].items() for row in given]


def asked(row: dict[str, Any]) -> Job:
    """A job with its defaults filled in, whether or not it would be answered."""
    job = Job.model_validate({"model": MODEL, **row})
    return with_defaults(job, resolve(job.model).spec)[0]


@pytest.mark.share(4)
@pytest.mark.parametrize(("where", "row"), rows("fake_step"))
def test_fake_tensors_are_not_played_as_another_job(where: str, row: dict[str, Any]) -> None:
    job = asked(row)
    with pytest.raises(WillItFitError) as refused:
        fake_step(job, resolve(job.model).spec)
    assert refused.value.where == where


@pytest.mark.parametrize(("where", "row"), rows("real_step"))
def test_real_tensors_are_not_played_as_another_job(where: str, row: dict[str, Any]) -> None:
    row = {**row, "training": {"precision": "32-true", "activation_checkpointing": "none", **row.get("training", {})}}
    job = asked(row)
    with pytest.raises(NotModelled) as refused:
        real_step(job, resolve(job.model).spec)
    assert refused.value.where == where


def test_verify_refuses_what_its_judge_refuses() -> None:
    with pytest.raises(NotModelled, match="cannot play") as refused:
        verify({"model": MODEL, "training": {"quantization": "nf4", "adapter": {}}})
    assert refused.value.where == "training.quantization"


@pytest.mark.parametrize("part", [Training, Parallelism, Offload])
def test_every_setting_is_honoured_or_has_no_bytes_or_is_refused(part: Any) -> None:
    """A field that is added to the contract is refused until the judge reads it, and this table says so."""
    name = part.__name__.lower()
    assert set(part.model_fields) == HONOURED[name] | WITHOUT_BYTES.get(name, set()) | UNREAD[name]


def test_what_the_caller_plays_is_not_refused() -> None:
    job = Job.model_validate(estimate(job_of(cases("cpu_offload")[0])).job)
    spec = resolve(job.model).spec
    refuse_unplayable(job, spec, elsewhere=("offload",))
    with pytest.raises(NotModelled):
        refuse_unplayable(job, spec)
