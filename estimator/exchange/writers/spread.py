"""Jobs of training as commands with settings by dotted names: Megatron-Bridge's recipes, and verl's fine-tuning."""

from __future__ import annotations

import shlex
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.exchange import megatron
from estimator.exchange.configuration import framework
from estimator.exchange.frameworks.megatron_bridge import BATCH, OPTIMIZER, PRECISION, SWITCHES, VALUES, usual
from estimator.exchange.writers.shared import said_of_texts
from estimator.specs.resolve import resolve


def megatron_bridge(job: Job) -> str:
    """The command of Megatron-Bridge's run_recipe.py: the recipe of the model, with what differs in it."""
    said_of_texts(job, "megatron-bridge")
    training, adapter = job.training, job.training.adapter
    if training.implementation != "megatron":
        raise InvalidJob("Megatron-Bridge trains by Megatron-Core: write implementation: megatron", "training.implementation")
    if adapter is not None and adapter.type != "lora":
        raise InvalidJob(f"{adapter.type} is not written for it: lora is", "training.adapter.type")
    kind = "pretrain" if adapter is None else "peft"
    name, row = _recipe(str(job.model), kind)
    flags = megatron.arguments(megatron.write(job))
    degrees = {flag for ours, flag in megatron.DEGREES.items() if ours != "expert_tensor"}
    wanted: dict[str, Any] = {key: flags.get(flag, 1 if flag in degrees else None) for flag, key in VALUES.items()}
    wanted |= {key: flag in flags for flag, key in SWITCHES.items()}
    wanted |= {BATCH: flags["--global-batch-size"], OPTIMIZER: "--use-distributed-optimizer" in flags}
    wanted[PRECISION] = _precision(job)
    if wanted["model.recompute_modules"]:
        wanted["model.recompute_modules"] = f"[{','.join(wanted['model.recompute_modules'].split())}]"
    if not wanted["model.cross_entropy_loss_fusion"]:
        wanted["model.cross_entropy_fusion_impl"] = "native"
    if adapter is not None:
        wanted |= {"peft.dim": getattr(adapter, "rank", None), "peft.dropout": getattr(adapter, "dropout", 0.0)}
    own = {key: 1 for flag, key in VALUES.items() if flag in degrees} | dict.fromkeys(SWITCHES.values(), False) | usual(row)
    said = {key: value for key, value in wanted.items() if _text(value) != _text(own.get(key))}
    start = [*_launched(job), "scripts/training/run_recipe.py", "--recipe", f"{name}_config"]
    return _command(start, said)


def _recipe(model: str, kind: str) -> tuple[str, dict[str, Any]]:
    """The first recipe of a kind whose model is of the same architecture."""
    spec = resolve(model).spec
    for name, row in framework("megatron-bridge").tables["recipes"].items():
        if f"_{kind}_" in name and resolve(row["model"]).spec == spec:
            return name, row
    raise InvalidJob(f"Megatron-Bridge has no recipe of {model[:60]} that is known here", "model")


def _precision(job: Job) -> str:
    """The name of Megatron-Bridge's recipe of mixed precision."""
    training = job.training
    half = "fp16" if training.precision == "megatron-fp16" else "bf16"
    if training.fp8 is None:
        return f"{half}_mixed"
    asked = training.fp8
    for name, known in framework("megatron-bridge").tables["precisions"].items():
        theirs = (known.get("recipe"), known.get("format"), known.get("gathers", False))
        alike = theirs == (asked.recipe, asked.format, asked.param_gather) and half == "bf16" and not known.get("ends")
        if alike and (asked.recipe != "delayed" or known["history"] == asked.amax_history_len):
            return str(name)
    raise InvalidJob("no recipe of mixed precision of Megatron-Bridge's has this fp8", "training.fp8")


def verl(job: Job) -> str:
    """The command of verl's supervised fine-tuning (`verl.trainer.sft_trainer`), its engine being FSDP."""
    said_of_texts(job, "verl")
    training, parallel, gpus = job.training, job.parallelism, job.hardware.gpus * job.hardware.nodes
    strategies = {"fsdp1": "fsdp", "fsdp2": "fsdp2", "hsdp": "fsdp2"}
    if parallel.strategy not in strategies:
        raise InvalidJob(f"verl's engine is fsdp1 or fsdp2, not {parallel.strategy}", "parallelism.strategy")
    types = {"bf16-mixed": "fp32", "bf16-true": "bfloat16"}
    if training.precision not in types:
        raise InvalidJob(f"verl's are {' and '.join(types)}, not {training.precision}", "training.precision")
    said: dict[str, Any] = {"model.path": job.model, "engine.strategy": strategies[parallel.strategy]}
    said["engine.model_dtype"] = types[training.precision]
    if parallel.strategy == "hsdp":
        said["engine.fsdp_size"] = gpus // (parallel.replicas or 1)
    if job.offload.parameters == "cpu":
        said["engine.offload_policy"] = True
    rows, tokens = training.micro_batch_size, training.sequence_length
    said["data.max_length"] = tokens
    said |= {"data.use_dynamic_bsz": False, "data.micro_batch_size_per_gpu": rows, "model.use_remove_padding": False}
    said["data.train_batch_size"] = rows * training.gradient_accumulation_steps * gpus
    said["model.enable_gradient_checkpointing"] = training.activation_checkpointing == "full"
    if training.implementation == "liger":
        said["model.use_liger"] = True
    if training.loss == "fused" and training.implementation != "liger":
        said["model.use_fused_kernels"] = True
    adapter: Any = training.adapter
    if adapter is not None:
        if adapter.type != "lora":
            raise InvalidJob(f"{adapter.type} is not written for it: lora is", "training.adapter.type")
        targets = adapter.targets if isinstance(adapter.targets, str) else f"[{','.join(adapter.targets)}]"
        said |= {"model.lora_rank": adapter.rank, "model.target_modules": targets}
    return _command([*_launched(job), "-m", "verl.trainer.sft_trainer"], said)


def _launched(job: Job) -> list[str]:
    """torchrun with the GPUs of the job."""
    nodes = [f"--nnodes={job.hardware.nodes}"] if job.hardware.nodes > 1 else []
    return ["torchrun", *nodes, f"--nproc_per_node={job.hardware.gpus}"]


def _command(words: list[str], said: dict[str, Any]) -> str:
    """A command with its settings, one on each line, as Hydra takes them."""
    return " \\\n  ".join([shlex.join(words), *(shlex.quote(f"{key}={_text(value)}") for key, value in said.items())]) + "\n"


def _text(value: Any) -> str:
    """A value as Hydra writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
