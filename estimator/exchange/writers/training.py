"""Jobs of training, in the words of TRL, axolotl and LLaMA-Factory: the other way round than `frameworks/` reads them."""

from __future__ import annotations

from typing import Any

import yaml

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.contract.job.optimizer import ALIASES
from estimator.exchange import deepspeed

TYPES = {"bf16-true": "bfloat16", "16-true": "float16", "bf16-mixed": "float32", "16-mixed": "float32", "32-true": "float32"}
"""What weights are loaded in, by a job's precision."""
ATTENTION = {"flash_attention_2": "fa2", "flash_attention_3": "fa3", "sdpa": "sdpa", "eager": "disabled"}
"""LLaMA-Factory's names."""


def trl(job: Job) -> str:
    """TRL's YAML of `trl sft`."""
    _plain(job, "trl")
    training = job.training
    said = _common(job) | _lora(job, "lora_r", "lora_target_modules", "lora_modules_to_save") | _spread(job)
    said |= {"dtype": TYPES.get(training.precision, "bfloat16" if "bf16" in training.precision else "float16")}
    said |= {"max_length": training.sequence_length, "gradient_checkpointing": training.activation_checkpointing == "full"}
    said |= {"attn_implementation": training.attention, "use_liger_kernel": training.implementation == "liger"}
    if training.reentrant_checkpointing:
        said["gradient_checkpointing_kwargs"] = {"use_reentrant": True}
    if job.offload.activations == "cpu":
        said["activation_offloading"] = True
    if training.adapter is not None:
        said["use_peft"] = True
    if (training.quantization or "").startswith(("nf4", "fp4")):
        said |= {"load_in_4bit": True, "bnb_4bit_quant_type": str(training.quantization)[:3]}
        said["use_bnb_nested_quant"] = str(training.quantization).endswith("-double")
    elif training.quantization == "int8":
        said["load_in_8bit"] = True
    return _file(said, "trl sft --config FILE", job)


def axolotl(job: Job) -> str:
    """axolotl's YAML."""
    _plain(job, "axolotl")
    training = job.training
    common = _common(job)
    said = {"base_model": common.pop("model_name_or_path"), "sequence_len": training.sequence_length}
    if common.pop("eval_strategy", None):
        said |= {"val_set_size": 0.05, "eval_batch_size": common.pop("per_device_eval_batch_size")}
    said |= {"micro_batch_size": common.pop("per_device_train_batch_size"), "optimizer": common.pop("optim"), **common}
    said |= _lora(job, "lora_r", "lora_target_modules", "lora_modules_to_save")
    if training.adapter is not None:
        said["adapter"] = "qlora" if (training.quantization or "").startswith("nf4") else "lora"
        if said.get("lora_target_modules") == "all-linear":
            del said["lora_target_modules"]
            said["lora_target_linear"] = True
    said |= {"load_in_4bit": (training.quantization or "").startswith("nf4"), "load_in_8bit": training.quantization == "int8"}
    said |= {"gradient_checkpointing": training.activation_checkpointing == "full", "attn_implementation": training.attention}
    if training.reentrant_checkpointing:
        said["gradient_checkpointing_kwargs"] = {"use_reentrant": True}
    plugins = {"liger": "liger.LigerPlugin", "cut": "cut_cross_entropy.CutCrossEntropyPlugin"}
    if training.implementation == "liger":
        said |= dict.fromkeys(("liger_rope", "liger_rms_norm", "liger_glu_activation"), True)
        said["liger_fused_linear_cross_entropy"] = training.loss == "fused"
        said["plugins"] = [f"axolotl.integrations.{plugins['liger']}"]
    elif training.loss == "fused":
        said |= {"plugins": [f"axolotl.integrations.{plugins['liger']}"], "liger_fused_linear_cross_entropy": True}
    elif training.loss == "cut":
        said["plugins"] = [f"axolotl.integrations.{plugins['cut']}"]
    elif training.loss == "chunked":
        said["chunked_cross_entropy"] = True
    if training.precision in ("bf16-true", "16-true") and not training.autocast:
        said |= {"bf16": False, "fp16": False, "bfloat16" if training.precision == "bf16-true" else "float16": True}
    if job.offload.activations == "cpu":
        said["activation_offloading"] = True
    spread = _spread(job)
    if "fsdp_config" in spread:
        said["fsdp_version"] = spread["fsdp_config"].pop("version")
    return _file(said | {key: value for key, value in spread.items() if key != "fsdp"}, "axolotl train FILE", job)


def llama_factory(job: Job) -> str:
    """LLaMA-Factory's YAML."""
    _plain(job, "llama-factory")
    training = job.training
    said = {**_common(job), "stage": "sft", "finetuning_type": "full" if training.adapter is None else "lora"}
    said |= _lora(job, "lora_rank", "lora_target", "additional_target") | _spread(job)
    if said.get("lora_target") == "all-linear":
        said["lora_target"] = "all"
    if (training.quantization or "").startswith(("nf4", "fp4")):
        said |= {"quantization_bit": 4, "quantization_type": str(training.quantization)[:3]}
        said["double_quantization"] = str(training.quantization).endswith("-double")
    said |= {"cutoff_len": training.sequence_length, "use_reentrant_gc": training.reentrant_checkpointing}
    said["disable_gradient_checkpointing"] = training.activation_checkpointing != "full"
    said |= {"flash_attn": ATTENTION.get(training.attention, training.attention), "packing": False}
    said["enable_liger_kernel"] = training.implementation == "liger"
    if training.precision == "bf16-true" and not training.autocast:
        said |= {"bf16": False, "pure_bf16": True}
    if training.upcast_unquantized == "norms":
        said["upcast_layernorm"] = True
    if job.offload.activations == "cpu":
        said["use_unsloth_gc"] = True
    return _file(said, "llamafactory-cli train FILE", job)


def _plain(job: Job, to: str) -> None:
    """Raise for what no file of these says."""
    if job.task != "train":
        raise InvalidJob(f"{to} trains; a job of serving is written for vllm, sglang or tensorrt-llm", "task")
    if not isinstance(job.model, str):
        raise InvalidJob(f"a file of {to} names a model of the hub: write its name in place of its configuration", "model")
    for field, value in (
        ("objective", job.training.objective),
        ("pruning", job.training.pruning),
        ("images", job.training.images),
    ):
        if value is not None:
            raise InvalidJob(f"is not written for {to} yet: only fine-tuning on texts is", f"training.{field}")


def _common(job: Job) -> dict[str, Any]:
    """What transformers' TrainingArguments have."""
    training, precision = job.training, job.training.precision
    computes = training.autocast or "mixed" in precision or precision.startswith("deepspeed")
    said: dict[str, Any] = {
        "model_name_or_path": job.model,
        "bf16": computes and "bf16" in precision,
        "fp16": computes and "bf16" not in precision and precision != "32-true",
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "optim": _optimizer(job),
        "max_grad_norm": 1.0 if training.gradient_clipping else 0.0,
    }
    if training.evaluation is not None:
        said |= {"eval_strategy": "epoch", "per_device_eval_batch_size": training.evaluation.micro_batch_size}
    return said


def _optimizer(job: Job) -> str:
    """What the Trainer calls the optimizer."""
    training = job.training
    for name, fields in ALIASES.items():
        whole = {"optimizer_in_backward": False, "optimizer_wide_embeddings": False, **fields}
        if all(getattr(training, field) == value for field, value in whole.items()):
            return name
    raise InvalidJob(f"transformers' Trainer has no name for {training.optimizer} as the job has it", "training.optimizer")


def _lora(job: Job, rank: str, targets: str, saved: str) -> dict[str, Any]:
    adapter: Any = job.training.adapter
    if adapter is None:
        return {}
    if adapter.type not in ("lora", "dora"):
        raise InvalidJob(f"{adapter.type} is not written yet: lora and dora are", "training.adapter.type")
    said = {rank: adapter.rank, "lora_dropout": adapter.dropout, targets: adapter.targets}
    said |= {"use_dora": True} if adapter.type == "dora" else {}
    return said | ({saved: adapter.modules_to_save} if adapter.modules_to_save else {})


def _spread(job: Job) -> dict[str, Any]:
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


def _file(said: dict[str, Any], command: str, job: Job) -> str:
    """The YAML, with the command and the number of GPUs before it."""
    gpus = f"{job.hardware.gpus} GPUs" if job.hardware.gpus > 1 else "one GPU"
    where = f"{job.hardware.nodes} nodes of {gpus}" if job.hardware.nodes > 1 else gpus
    return f"# {command}, on {where}\n" + yaml.safe_dump(said, sort_keys=False, width=120)
