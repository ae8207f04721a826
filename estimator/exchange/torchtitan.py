"""torchtitan's configuration (TOML): degrees, FSDP's settings, checkpointing and batches.

torchtitan/config/job_config.py of release 0.2 (read 2026-11-22).
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import CheckpointForm, Job, Parallelism
from estimator.contract.reading import parse_toml
from estimator.exchange.found import Found, Settings

TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
DEGREES = {
    "tensor": "tensor_parallel_degree",
    "pipeline": "pipeline_parallel_degree",
    "context": "context_parallel_degree",
    "expert": "expert_parallel_degree",
}
SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "looped-bfs": "LoopedBFS",
    "zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""torchtitan's name for each pipeline schedule of a job. All but those in `SINGLE` have two chunks on each rank, unless
layers_per_stage says otherwise."""
SINGLE = ("1F1B", "GPipe")
SILENT = frozenset({"job", "profiling", "metrics", "model", "optimizer", "lr_scheduler", "checkpoint", "validation", "comm"})


def write(job: Job) -> str:
    """The file, for a job with its defaults."""
    parallelism, training = job.parallelism, job.training
    strategy, data = parallelism.strategy or "none", parallelism.data or 1
    if strategy not in ("none", "ddp", "fsdp2", "hsdp"):
        raise InvalidJob(f"torchtitan has ddp, fsdp2 and hsdp, not {strategy}", "parallelism.strategy")
    replicas = data if strategy == "ddp" else parallelism.replicas or 1
    piped = parallelism.pipeline > 1  # then all micro-batches are one batch
    local = training.micro_batch_size * (training.gradient_accumulation_steps if piped else 1)
    mixed = training.precision == "bf16-mixed"
    if not mixed and training.precision not in ("32-true", "bf16-true"):
        raise InvalidJob(f"torchtitan has no {training.precision}; write bf16-mixed, bf16-true or 32-true", "training.precision")
    tables: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": local,
            "seq_len": training.sequence_length,
            "dtype": "bfloat16" if training.precision == "bf16-true" else "float32",
            "mixed_precision_param": "float32" if training.precision == "32-true" else "bfloat16",
            "mixed_precision_reduce": "float32",
            "enable_cpu_offload": job.offload.parameters == "cpu",
        },
        "parallelism": {
            "data_parallel_replicate_degree": replicas,
            "data_parallel_shard_degree": data // replicas,
            "fsdp_reshard_after_forward": _resharded(job),
            **{theirs: getattr(parallelism, ours) for ours, theirs in DEGREES.items()},
            **_schedule(parallelism, training.micro_batch_size),
        },
        "activation_checkpoint": _checkpointing(training.activation_checkpointing),
    }
    if training.gradient_accumulation_steps > 1 and not piped:
        batches = training.micro_batch_size * training.gradient_accumulation_steps * data
        tables["training"]["global_batch_size"] = batches
    return "\n".join(_table(name, settings) for name, settings in tables.items())


def _resharded(job: Job) -> str:
    """Its own modules reshard by default all but the last norm and the output layer."""
    if not job.parallelism.reshard_after_forward:
        return "never"
    return "default" if job.training.implementation == "torchtitan" else "always"


def _schedule(parallelism: Parallelism, microbatch: int) -> dict[str, str | int]:
    """A pipeline's schedule, as its chunks are where nothing is said of layers."""
    schedule = parallelism.pipeline_schedule
    if parallelism.pipeline == 1 or schedule is None:
        return {}
    if schedule not in SCHEDULES:
        raise InvalidJob(f"torchtitan has {', '.join(SCHEDULES)}, not {schedule}", "parallelism.pipeline_schedule")
    chunks = 1 if SCHEDULES[schedule] in SINGLE else 2
    if parallelism.model_chunks not in (None, chunks):
        raise InvalidJob(f"{schedule} is written for torchtitan with {chunks} on each rank only", "parallelism.model_chunks")
    return {"pipeline_parallel_schedule": SCHEDULES[schedule], "pipeline_parallel_microbatch_size": microbatch}


def _checkpointing(asked: str | CheckpointForm) -> dict[str, Any]:
    if isinstance(asked, CheckpointForm) and asked.every:
        return {"mode": "selective", "selective_ac_option": str(asked.every)}
    if asked == "selective" or (isinstance(asked, CheckpointForm) and asked.operations == "torchtitan"):
        return {"mode": "selective", "selective_ac_option": "op"}
    if asked not in ("none", "full"):
        raise InvalidJob("torchtitan recomputes none, full, selective, or {every: k}", "training.activation_checkpointing")
    return {"mode": asked}


def _table(name: str, settings: dict[str, Any]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in settings.items())]) + "\n"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def read(text: str) -> Found:
    """What a file says of a job. Its degree of sharding may be -1, all that is left: then the job's `data` stays open."""
    return found(parse_toml(text, "torchtitan"))


def found(settings: Any) -> Found:
    """What a file's tables say."""
    all_of = Settings(settings, "torchtitan")
    asked, training, recomputed = (all_of.part(name) for name in ("parallelism", "training", "activation_checkpoint"))
    job: dict[str, Any] = {"training": _training(training), "parallelism": _parallelism(asked)}
    job["training"]["activation_checkpointing"] = _recomputed(recomputed)
    if job["parallelism"].get("pipeline", 1) > 1:
        _read_schedule(asked, job)
    if training.yes("enable_cpu_offload"):
        job["offload"] = dict.fromkeys(("parameters", "gradients", "optimizer"), "cpu")
    batches, data = training.take("global_batch_size", -1), job["parallelism"].get("data")
    if batches != -1 and data:
        local = job["training"]["micro_batch_size"] * job["training"].get("gradient_accumulation_steps", 1)
        steps = max(1, batches // (local * data)) * job["training"].get("gradient_accumulation_steps", 1)
        job["training"]["gradient_accumulation_steps"] = steps
    rest = frozenset({"steps", "dataset", "dataset_path", "max_norm", "seed", "deterministic", "gc_freq", "gc_debug"})
    return Found(
        framework="torchtitan",
        version="0.2",
        job=job,
        left_out=[*asked.left(frozenset({"disable_loss_parallel"})), *training.left(rest), *all_of.left(SILENT)],
    )


def _read_schedule(asked: Settings, job: dict[str, Any]) -> None:
    """A pipeline's schedule, and its micro-batches, which are parts of the batch."""
    names = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
    given = str(asked.take("pipeline_parallel_schedule", "1F1B")).lower()
    if given not in names:
        raise InvalidJob(
            f"{given} is not known; write {', '.join(SCHEDULES.values())}", "torchtitan.parallelism.pipeline_parallel_schedule"
        )
    job["parallelism"] |= {"pipeline_schedule": names[given], "model_chunks": 1 if SCHEDULES[names[given]] in SINGLE else 2}
    batch, each = job["training"]["micro_batch_size"], asked.number("pipeline_parallel_microbatch_size")
    if each < 1 or batch % each:
        raise InvalidJob(
            f"local_batch_size {batch} is not whole micro-batches of {each}",
            "torchtitan.parallelism.pipeline_parallel_microbatch_size",
        )
    job["training"] |= {"micro_batch_size": each, "gradient_accumulation_steps": batch // each}


def _recomputed(asked: Settings) -> Any:
    mode = asked.take("mode", "selective")
    if mode != "selective" or asked.given.get("selective_ac_option") == "op":
        return mode
    return {"every": asked.number("selective_ac_option", 2)}


def _training(asked: Settings) -> dict[str, Any]:
    whole, half = asked.take("dtype", "float32"), asked.take("mixed_precision_param", "bfloat16")
    precision = "bf16-true" if whole == "bfloat16" else "bf16-mixed" if half == "bfloat16" else "32-true"
    found: dict[str, Any] = {"precision": precision}
    reduced = str(asked.take("mixed_precision_reduce", "float32"))
    if reduced != "float32" and precision == "bf16-mixed":
        if reduced not in TYPES:
            raise InvalidJob(f"{reduced} is not known; write {', '.join(TYPES)}", "torchtitan.training.mixed_precision_reduce")
        found["dtypes"] = {"gradients": TYPES[reduced]}
    found |= {"micro_batch_size": asked.number("local_batch_size", 8), "sequence_length": asked.number("seq_len", 2048)}
    return found


def _parallelism(asked: Settings) -> dict[str, Any]:
    replicas, shards = asked.number("data_parallel_replicate_degree"), asked.number("data_parallel_shard_degree", -1)
    strategy = "hsdp" if replicas > 1 and shards != 1 else "ddp" if replicas > 1 else "none" if shards == 1 else "fsdp2"
    found: dict[str, Any] = {"strategy": strategy}
    if strategy == "hsdp":
        found["replicas"] = replicas
    if shards != -1:
        found["data"] = replicas * shards
    if asked.take("fsdp_reshard_after_forward", "default") == "never":
        found["reshard_after_forward"] = False
    return found | {ours: degree for ours, theirs in DEGREES.items() if (degree := asked.number(theirs)) > 1}
