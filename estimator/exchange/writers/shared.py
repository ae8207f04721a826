"""What files of several frameworks of training say alike: the Trainer's arguments, adapters, DeepSpeed's and FSDP's settings."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import yaml

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.contract.job.optimizer import ALIASES
from estimator.exchange import deepspeed


def said_of_texts(job: Job, to: str, objectives: Collection[str] = ()) -> None:
    """Raise for what no file of these says. `objectives`: what is written of it beside fine-tuning."""
    if job.task != "train":
        raise InvalidJob(f"{to} trains; a job of serving is written for vllm, sglang or tensorrt-llm", "task")
    if not isinstance(job.model, str):
        raise InvalidJob(f"a file of {to} names a model of the hub: write its name in place of its configuration", "model")
    objective = job.training.objective
    if objective is not None and objective.type not in objectives:
        known = f"fine-tuning and {', '.join(objectives)} are" if objectives else "only fine-tuning is"
        raise InvalidJob(f"{objective.type} is not written for {to}: {known}", "training.objective")
    for field, value in (
        ("pruning", job.training.pruning),
        ("images", job.training.images),
        ("audio", job.training.audio),
    ):
        if value is not None:
            raise InvalidJob(f"is not written for {to} yet: only training on texts is", f"training.{field}")


def common(job: Job) -> dict[str, Any]:
    """What transformers' TrainingArguments have."""
    training, precision = job.training, job.training.precision
    computes = training.autocast or "mixed" in precision or precision.startswith("deepspeed")
    said: dict[str, Any] = {
        "model_name_or_path": job.model,
        "bf16": computes and "bf16" in precision,
        "fp16": computes and "bf16" not in precision and precision != "32-true",
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "optim": optimizer(job),
        "max_grad_norm": 1.0 if training.gradient_clipping else 0.0,
    }
    if training.evaluation is not None:
        said |= {"eval_strategy": "epoch", "per_device_eval_batch_size": training.evaluation.micro_batch_size}
    return said


def optimizer(job: Job) -> str:
    """What the Trainer calls the optimizer."""
    training = job.training
    for name, fields in ALIASES.items():
        whole = {"optimizer_in_backward": False, "optimizer_wide_embeddings": False, **fields}
        if all(getattr(training, field) == value for field, value in whole.items()):
            return name
    raise InvalidJob(f"transformers' Trainer has no name for {training.optimizer} as the job has it", "training.optimizer")


def lora(job: Job, rank: str, targets: str, saved: str) -> dict[str, Any]:
    """PEFT's settings of LoRA, by the framework's names of rank, layers and trained copies."""
    adapter: Any = job.training.adapter
    if adapter is None:
        return {}
    if adapter.type not in ("lora", "dora"):
        raise InvalidJob(f"{adapter.type} is not written yet: lora and dora are", "training.adapter.type")
    said = {rank: adapter.rank, "lora_dropout": adapter.dropout, targets: adapter.targets}
    said |= {"use_dora": True} if adapter.type == "dora" else {}
    return said | ({saved: adapter.modules_to_save} if adapter.modules_to_save else {})


def spread(job: Job) -> dict[str, Any]:
    """DeepSpeed's settings, or FSDP's."""
    strategy = job.parallelism.strategy or "none"
    if job.parallelism.tensor * job.parallelism.pipeline * job.parallelism.context > 1:
        raise InvalidJob("only data parallelism is written for it", "parallelism")
    if strategy.startswith("zero"):
        return {"deepspeed": {key: value for key, value in deepspeed.settings(job).items() if key == "zero_optimization"}}
    if strategy.startswith(("fsdp", "hsdp")):
        offloads = job.offload.parameters == "cpu"
        inner = {"version": 1 if strategy == "fsdp1" else 2, "offload_params": offloads}
        inner["reshard_after_forward"] = job.parallelism.reshard_after_forward
        return {"fsdp": "full_shard auto_wrap", "fsdp_config": inner}
    return {}


def file(said: dict[str, Any], command: str, job: Job) -> str:
    """The YAML, with the command and the number of GPUs before it."""
    return f"# {command}, on {where(job)}\n" + yaml.safe_dump(said, sort_keys=False, width=120)


def where(job: Job) -> str:
    """On how many GPUs a job runs, in words."""
    gpus = f"{job.hardware.gpus} GPUs" if job.hardware.gpus > 1 else "one GPU"
    return f"{job.hardware.nodes} nodes of {gpus}" if job.hardware.nodes > 1 else gpus
