"""Jobs in the words of other programs, and back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import app
from estimator import InvalidJob, estimate
from estimator.cli.main import main
from estimator.cli.options import FORMATS, FRAMEWORKS
from estimator.exchange import READ, WRITTEN, read, written

BASE: dict[str, Any] = {"model": "llama-3-8b", "hardware": {"gpu": "h100-80gb", "gpus": 8, "nodes": 2}}


def job(
    parallelism: dict[str, Any], training: dict[str, Any] | None = None, offload: dict[str, str] | None = None
) -> dict[str, Any]:
    return {**BASE, "parallelism": parallelism, "training": training or {}, "offload": offload or {}}


EVERY_SECOND = {"activation_checkpointing": {"every": 2}}
FP8 = {"recipe": "delayed", "format": "e4m3", "param_gather": True, "amax_history_len": 1024}
ALL = dict.fromkeys(("parameters", "gradients", "optimizer"), "cpu")
OVERLAPS = {"tp_comm_overlap": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
INTERLEAVED = {"implementation": "megatron", "activation_checkpointing": "none"}
JOBS = [
    ("deepspeed", job({"strategy": "ddp"}, {"precision": "32-true"})),
    ("deepspeed", job({"strategy": "zero1"}, {"precision": "bf16-mixed", "micro_batch_size": 4})),
    ("deepspeed", job({"strategy": "zero2"}, {"gradient_accumulation_steps": 3}, {"optimizer": "cpu"})),
    ("deepspeed", job({"strategy": "zero3"}, {"precision": "bf16-mixed"}, {"optimizer": "cpu", "parameters": "cpu"})),
    ("accelerate", job({"strategy": "ddp"}, {"precision": "bf16-mixed"})),
    ("accelerate", job({"strategy": "fsdp1", "backward_prefetch": False}, {"precision": "bf16-mixed"})),
    ("accelerate", job({"strategy": "fsdp2", "reshard_after_forward": False}, {"precision": "16-mixed"})),
    ("accelerate", job({"strategy": "fsdp2"}, {"precision": "bf16-mixed", "activation_checkpointing": "none"}, ALL)),
    ("accelerate", job({"strategy": "hsdp"}, {"precision": "bf16-mixed"})),
    ("accelerate", job({"strategy": "zero3"}, {"precision": "bf16-mixed"}, {"optimizer": "cpu"})),
    ("torchtitan", job({"strategy": "fsdp2"}, {"precision": "bf16-mixed", "gradient_accumulation_steps": 2})),
    (
        "torchtitan",
        job({"strategy": "hsdp", "replicas": 4}, {"precision": "bf16-true", **EVERY_SECOND}),
    ),
    ("torchtitan", job({"strategy": "ddp"}, {"precision": "32-true", "activation_checkpointing": "selective"})),
    ("megatron", job({"tensor": 8}, {"implementation": "megatron", "loss": "fused", "activation_checkpointing": "none"})),
    ("megatron", job({"tensor": 2}, {"implementation": "megatron", "loss": "compiled", "activation_checkpointing": "full"})),
    ("megatron", job({"tensor": 4, "pipeline": 2, "strategy": "ddp", "sequence": False}, {"implementation": "megatron"})),
    (
        "megatron",
        job(
            {"tensor": 2, "strategy": "zero1"},
            {"implementation": "megatron", "fp8": FP8, "activation_checkpointing": "selective"},
        ),
    ),
    ("megatron", job({"pipeline": 2}, {"implementation": "megatron", "activation_checkpointing": {"uniform": 4}})),
    ("megatron", job({}, {"implementation": "megatron", "activation_checkpointing": {"modules": ["core_attn", "mlp"]}})),
    ("megatron", job({"tensor": 2}, {"implementation": "megatron", "mtp_num_layers": 1})),
    ("megatron", job({"tensor": 2, "strategy": "zero1", **OVERLAPS}, {"implementation": "megatron"})),
    ("megatron", job({"context": 2, "pipeline": 2}, {"implementation": "megatron", "activation_checkpointing": {"layers": 3}})),
    ("deepspeed", job({"strategy": "zero3", "zero_hpz_partition_size": 8, "zero_quantized_weights": True})),
    ("deepspeed", job({"strategy": "zero3", "zero_quantized_gradients": True}, {"gradient_accumulation_steps": 3})),
    ("megatron", job({"context": 2, "context_exchange": "a2a"}, {"implementation": "megatron"})),
    (
        "megatron",
        job({"pipeline": 4, "model_chunks": 2, "micro_batch_group": 4}, INTERLEAVED),
    ),
]
PLUS_PLUS = next(asked for _, asked in JOBS if "zero_hpz_partition_size" in asked["parallelism"])
FIELDS = {
    "parallelism": (
        "strategy",
        "data",
        "tensor",
        "pipeline",
        "context",
        "expert",
        "replicas",
        "zero_hpz_partition_size",
        "zero_quantized_weights",
        "zero_quantized_gradients",
        "reshard_after_forward",
        "sequence",
        "context_exchange",
        "pipeline_schedule",
        "model_chunks",
        "micro_batch_group",
        *OVERLAPS,
    ),
    "training": ("precision", "micro_batch_size", "activation_checkpointing", "loss", "fp8", "mtp_num_layers"),
    "offload": ("optimizer", "parameters"),
    "hardware": ("gpus", "nodes"),
}


@pytest.mark.parametrize(
    ("program", "asked"), JOBS, ids=lambda given: given if isinstance(given, str) else str(given["parallelism"])
)
def test_there_and_back(program: str, asked: dict[str, Any]) -> None:
    """What comes back is the same job, once what the format does not say is filled in: same bytes, same spread."""
    found = read(written(asked, program), program)
    again = {"model": asked["model"], **found.job, "hardware": asked["hardware"] | found.job.get("hardware", {})}
    if "zero" in asked["parallelism"].get("strategy", "") or program == "deepspeed":  # they say nothing of checkpointing
        again["training"] |= {name: value for name, value in asked["training"].items() if name == "activation_checkpointing"}
    before, after = estimate(asked), estimate(again)
    for part, names in FIELDS.items():
        for name in names:
            assert after.job[part][name] == before.job[part][name], (part, name)
    assert found.left_out == []
    if "gradient_accumulation_steps" in found.job["training"]:
        assert after.memory == before.memory


def test_each_is_in_its_own_language() -> None:
    zero = json.loads(written(JOBS[2][1], "deepspeed"))
    assert zero["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    assert json.loads(written(PLUS_PLUS, "deepspeed"))["zero_optimization"] == {
        "stage": 3,
        "zero_hpz_partition_size": 8,
        "zero_quantized_weights": True,
    }
    assert yaml.safe_load(written(JOBS[6][1], "accelerate"))["fsdp_config"]["fsdp_version"] == 2
    assert tomllib.loads(written(JOBS[11][1], "torchtitan"))["parallelism"]["data_parallel_replicate_degree"] == 4
    assert "--tensor-model-parallel-size 8\n--sequence-parallel\n--use-distributed-optimizer" in written(JOBS[13][1], "megatron")


TYPICAL = {
    "deepspeed": (
        '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": "auto"}, '
        '"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", "steps_per_print": 10}',
        [
            "deepspeed.bf16.enabled",
            "deepspeed.zero_optimization.reduce_bucket_size",
            "deepspeed.train_micro_batch_size_per_gpu",
            "deepspeed.gradient_clipping",
            "deepspeed.zero_optimization.overlap_comm",
        ],
        {"strategy": "zero3"},
    ),
    "accelerate": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'bf16'\nnum_machines: 1\nnum_processes: 8\n"
        "fsdp_config: {fsdp_reshard_after_forward: FULL_SHARD, fsdp_min_num_params: 100, fsdp_offload_params: false}\n",
        ["accelerate.fsdp_config.fsdp_min_num_params"],
        {"strategy": "fsdp1"},
    ),
    "torchtitan": (
        "[training]\nlocal_batch_size = 1\nseq_len = 8192\nsteps = 10\n[parallelism]\ntensor_parallel_degree = 8\n"
        'enable_async_tensor_parallel = true\n[activation_checkpoint]\nmode = "full"\n',
        ["torchtitan.parallelism.enable_async_tensor_parallel"],
        {"strategy": "fsdp2", "tensor": 8},
    ),
    "megatron": (
        "torchrun pretrain_gpt.py \\\n --tensor-model-parallel-size=4 --pipeline-model-parallel-size 2 \\\n --sequence-parallel "
        "--num-layers 32 --bf16 --num-layers-per-virtual-pipeline-stage 4 --micro-batch-size 1  # a note",
        [],
        {
            "strategy": "ddp",
            "tensor": 4,
            "pipeline": 2,
            "sequence": True,
            "pipeline_schedule": "interleaved",
            "model_chunks": 4,
        },
    ),
}


def test_accelerate_has_no_words_for_zero_plus_plus() -> None:
    with pytest.raises(InvalidJob, match="deepspeed_config_file"):
        written(PLUS_PLUS, "accelerate")


@pytest.mark.parametrize("program", TYPICAL)
def test_what_people_have(program: str) -> None:
    """What a job has no field for is said."""
    text, left_out, parallelism = TYPICAL[program]
    found = read(text, program)
    assert [one.key for one in found.left_out] == left_out
    assert found.job["parallelism"] == parallelism


BAD = [
    ("deepspeed", "{", "not JSON"),
    ("deepspeed", "[]", "no mapping"),
    ("deepspeed", '{"zero_optimization": {"stage": 4}}', "no stage 4"),
    ("deepspeed", '{"zero_optimization": 3}', "no mapping"),
    ("deepspeed", '{"gradient_accumulation_steps": "two"}', "no whole number"),
    ("accelerate", "a: [", "not valid YAML"),
    ("accelerate", "num_processes: 3\nnum_machines: 2", "do not divide"),
    ("accelerate", "distributed_type: XLA", "XLA is not read"),
    ("accelerate", "mixed_precision: fp8", "fp8 is not modelled"),
    (
        "accelerate",
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}",
        "SHARD_GRAD_OP is not modelled",
    ),
    ("torchtitan", "[", "not TOML"),
    ("megatron", "", "no arguments"),
    ("megatron", "--micro-batch-size zero", "no whole number"),
    ("megatron", "--bf16 'open", "cannot be split"),
    ("megatron", "--recompute-granularity some --recompute-num-layers 2", "write full, by block or uniform, or selective"),
    ("megatron", "--fp8-format e5m2", "training.fp8.format"),
    ("nemo", "", "no format"),
    ("deepspeed", '{"gradient_clipping": "lots"}', "deepspeed.gradient_clipping: 'lots' is no number"),
    ("accelerate", "distributed_type: DEEPSPEED\ndeepspeed_config: {gradient_clipping: lots}", "'lots' is no number"),
    (
        "accelerate",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 9}",
        "parallelism.strategy: write .* .given 'zero9'",
    ),
    ("torchtitan", '[activation_checkpoint]\nselective_ac_option = "abc"', "'abc' is no whole number"),
    ("torchtitan", '[activation_checkpoint]\nmode = "memory_budget"', "training.activation_checkpointing"),
    ("torchtitan", '[training]\nmixed_precision_reduce = "float64"', "float64 is not known; write bfloat16"),
    ("megatron", "--recompute-granularity full --recompute-num-layers x", "no whole number"),
    ("megatron", "--moe-expert-capacity-factor x", "'x' is no number"),
    (
        "megatron",
        "--pipeline-model-parallel-size 2 --num-layers 6 --num-layers-per-virtual-pipeline-stage 2",
        "--num-layers that divides by 4",
    ),
    ("megatron", "--context-parallel-size 2 --cp-comm-type p2p a2a", "context_exchange"),
    (
        "torchtitan",
        '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "Best"',
        "best is not known; write 1F1B",
    ),
    (
        "torchtitan",
        "[training]\nlocal_batch_size = 3\n[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2",
        "not whole micro-batches of 2",
    ),
]


@pytest.mark.parametrize(("program", "text", "said"), BAD)
def test_what_cannot_be_read(program: str, text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        read(text, program)


UNWRITTEN = [
    ("deepspeed", {"strategy": "fsdp2"}, {}, "not fsdp2"),
    ("torchtitan", {"strategy": "zero1"}, {}, "not zero1"),
    ("megatron", {"strategy": "fsdp2"}, {}, "not fsdp2"),
    ("megatron", {"strategy": "ddp"}, {}, "not bf16-mixed"),
    ("accelerate", {"tensor": 2}, {"implementation": "megatron"}, "only data parallelism"),
    ("megatron", {"pipeline": 2, "pipeline_schedule": "zbv"}, {"implementation": "megatron"}, "not zbv"),
    ("torchtitan", {"pipeline": 2, "pipeline_schedule": "dualpipe"}, {"precision": "bf16-mixed"}, "not dualpipe"),
    (
        "torchtitan",
        {"pipeline": 2, "pipeline_schedule": "interleaved", "model_chunks": 4},
        {"precision": "bf16-mixed"},
        "with 2 on each rank only",
    ),
]


@pytest.mark.parametrize(("program", "parallelism", "training", "said"), UNWRITTEN)
def test_what_a_program_does_not_have(program: str, parallelism: Any, training: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        written(job(parallelism, training), program)


SCHEDULES = ["1f1b", "interleaved", "gpipe", "looped-bfs", "zero-bubble", "zbv", "dualpipev"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_of_torchtitan(schedule: str) -> None:
    """Its schedules, and micro-batches that are parts of its batch."""
    training = {"precision": "bf16-mixed", "micro_batch_size": 2, "gradient_accumulation_steps": 8}
    found = read(written(job({"pipeline": 4, "pipeline_schedule": schedule}, training), "torchtitan"), "torchtitan")
    assert found.left_out == []
    assert found.job["parallelism"]["pipeline_schedule"] == schedule
    assert (found.job["training"]["micro_batch_size"], found.job["training"]["gradient_accumulation_steps"]) == (2, 8)


def test_auto_is_not_guessed() -> None:
    """What is `auto` stands in the Trainer's arguments: the precision, and the batch, stay unsaid."""
    found = read(TYPICAL["deepspeed"][0], "deepspeed")
    assert found.job["training"] == {"gradient_accumulation_steps": 1}
    assert "Trainer's own arguments" in found.left_out[0].why


def test_the_doors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line and REST say what Python says."""
    asked = tmp_path / "job.yaml"
    asked.write_text(yaml.safe_dump(JOBS[6][1]), encoding="utf-8")
    assert main(["export", str(asked), "--to", "accelerate"]) == 0
    text = capsys.readouterr().out
    assert text == written(JOBS[6][1], "accelerate")
    config = tmp_path / "accelerate.yaml"
    config.write_text(text + "dynamo_config: {}\n", encoding="utf-8")
    assert main(["import", str(config), "--model", "llama-3-8b"]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == {"model": "llama-3-8b", **read(text, "accelerate").job}
    assert err.splitlines() == [
        "willitfit: left out: accelerate.dynamo_config: {}: a job has no field for it",
    ]
    assert main(["import", str(tmp_path / "none.toml")]) == 2
    client = TestClient(app)
    assert client.post("/v1/export?to=accelerate", json=JOBS[6][1]).text == text
    answer = client.post("/v1/import?from=accelerate", content=text)
    assert answer.json() == read(text, "accelerate").model_dump(mode="json")
    assert client.post("/v1/import?from=nemo", content=text).status_code == 422
    assert client.post("/v1/import?from=megatron", content=b"\xff").status_code == 422
    assert READ == FRAMEWORKS
    assert WRITTEN == FORMATS
