"""Jobs of training, in the words of frameworks built on the Trainer or DeepSpeed, as `frameworks/` reads them."""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.exchange.writers.serving import command
from estimator.exchange.writers.shared import common, file, lora, said_of_texts, spread, where

TYPES = {"bf16-true": "bfloat16", "16-true": "float16", "bf16-mixed": "float32", "16-mixed": "float32", "32-true": "float32"}
"""What weights are loaded in, by a job's precision."""
ATTENTION = {"flash_attention_2": "fa2", "flash_attention_3": "fa3", "sdpa": "sdpa", "eager": "disabled"}
"""LLaMA-Factory's names."""
FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attention_3"}
"""ms-swift's."""
PAIRS = {"dpo": "dpo", "orpo": "orpo", "kto": "kto", "reward": "rm"}
"""Objectives of preferences, and what LLaMA-Factory and ms-swift call them."""


def trl(job: Job) -> str:
    """TRL's YAML of `trl sft`; of preferences, whose YAML does not say which trainer it is for, the command."""
    said_of_texts(job, "trl", ("dpo", "kto", "reward"))
    training = job.training
    said = common(job) | lora(job, "lora_r", "lora_target_modules", "lora_modules_to_save") | spread(job)
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
    if training.objective is None:
        return file(said, "trl sft --config FILE", job)
    if training.objective.reference == "precomputed":
        said["precompute_ref_log_probs"] = True
    return f"# on {where(job)}\n" + command(["trl", training.objective.type], said, dashes=False)


def axolotl(job: Job) -> str:
    """axolotl's YAML."""
    said_of_texts(job, "axolotl", PAIRS)
    training, objective = job.training, job.training.objective
    shared = common(job)
    said = {"base_model": shared.pop("model_name_or_path"), "sequence_len": training.sequence_length}
    if shared.pop("eval_strategy", None):
        said |= {"val_set_size": 0.05, "eval_batch_size": shared.pop("per_device_eval_batch_size")}
    said |= {"micro_batch_size": shared.pop("per_device_train_batch_size"), "optimizer": shared.pop("optim"), **shared}
    if objective is not None:
        said |= {"reward_model": True} if objective.type == "reward" else {"rl": objective.type}
    said |= lora(job, "lora_r", "lora_target_modules", "lora_modules_to_save")
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
    held = spread(job)
    if "fsdp_config" in held:
        said["fsdp_version"] = held["fsdp_config"].pop("version")
    return file(said | {key: value for key, value in held.items() if key != "fsdp"}, "axolotl train FILE", job)


def llama_factory(job: Job) -> str:
    """LLaMA-Factory's YAML."""
    said_of_texts(job, "llama-factory", PAIRS)
    training, objective = job.training, job.training.objective
    stage = "sft" if objective is None else "dpo" if objective.type == "orpo" else PAIRS[objective.type]
    said = {**common(job), "stage": stage, "finetuning_type": "full" if training.adapter is None else "lora"}
    if objective is not None and objective.type == "orpo":
        said["pref_loss"] = "orpo"
    said |= lora(job, "lora_rank", "lora_target", "additional_target") | spread(job)
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
    return file(said, "llamafactory-cli train FILE", job)


def ms_swift(job: Job) -> str:
    """ms-swift's YAML of `swift sft`, and of `swift rlhf`."""
    said_of_texts(job, "ms-swift", PAIRS)
    training, objective = job.training, job.training.objective
    shared, held = common(job), spread(job)
    said = {"model": shared.pop("model_name_or_path"), "tuner_type": "full" if training.adapter is None else "lora"}
    if objective is not None:
        said["rlhf_type"] = PAIRS[objective.type]
    if shared.pop("eval_strategy", None):
        said["split_dataset_ratio"] = 0.05
    said |= {"torch_dtype": TYPES.get(training.precision, "bfloat16" if "bf16" in training.precision else "float16"), **shared}
    if training.precision.startswith("deepspeed"):
        del said["bf16"], said["fp16"]
    said |= lora(job, "lora_rank", "target_modules", "modules_to_save")
    if training.adapter is not None:
        said["lora_dtype"] = {"fp32": "float32", "bf16": "bfloat16"}.get(str(training.adapter.dtype), "float16")
    if (training.quantization or "").startswith(("nf4", "fp4")):
        said |= {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_quant_type": str(training.quantization)[:3]}
        said["bnb_4bit_use_double_quant"] = str(training.quantization).endswith("-double")
    elif training.quantization == "int8":
        said |= {"quant_method": "bnb", "quant_bits": 8}
    said |= {"max_length": training.sequence_length, "gradient_checkpointing": training.activation_checkpointing == "full"}
    said["gradient_checkpointing_kwargs"] = {"use_reentrant": training.reentrant_checkpointing}
    said |= {"attn_impl": FLASH.get(training.attention, training.attention)}
    said["use_liger_kernel"] = training.implementation == "liger"
    if "fsdp" in held:
        held = {"fsdp": "fsdp2"}
    if job.hardware.gpus > 1:
        said["ENV"] = {"NPROC_PER_NODE": job.hardware.gpus}
    return file(said | held, f"swift {'sft' if objective is None else 'rlhf'} FILE", job)


def oumi(job: Job) -> str:
    """oumi's YAML of `oumi train`."""
    said_of_texts(job, "oumi")
    training = job.training
    shared, held = common(job), spread(job)
    model = {"model_name": shared.pop("model_name_or_path"), "model_max_length": training.sequence_length}
    model |= {"torch_dtype_str": TYPES.get(training.precision, "bfloat16"), "attn_implementation": training.attention}
    model["enable_liger_kernel"] = training.implementation == "liger"
    mixed = {"bf16": shared.pop("bf16"), "fp16": shared.pop("fp16")}
    said: dict[str, Any] = {"trainer_type": "TRL_SFT", "optimizer": shared.pop("optim"), **shared}
    said["mixed_precision_dtype"] = next((name.upper() for name, on in mixed.items() if on), "NONE")
    said["enable_gradient_checkpointing"] = training.activation_checkpointing == "full"
    said["gradient_checkpointing_kwargs"] = {"use_reentrant": training.reentrant_checkpointing}
    said["use_peft"] = training.adapter is not None
    sections: dict[str, Any] = {"model": model, "training": said}
    if training.adapter is not None:
        sections["peft"] = lora(job, "lora_r", "lora_target_modules", "lora_modules_to_save")
        if sections["peft"]["lora_target_modules"] == "all-linear":
            sections["peft"]["lora_target_modules"] = ["all-linear"]
    if (training.quantization or "").startswith(("nf4", "fp4")):
        kind, compute = str(training.quantization)[:3], training.quantization_compute or "bf16"
        names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
        sections["peft"] |= {"q_lora": True, "bnb_4bit_quant_type": kind, "bnb_4bit_compute_dtype": names[compute]}
        sections["peft"]["use_bnb_nested_quant"] = str(training.quantization).endswith("-double")
    if "fsdp" in held:
        inner = held["fsdp_config"]
        sections["fsdp"] = {"enable_fsdp": True, "sharding_strategy": "FULL_SHARD", "cpu_offload": inner["offload_params"]}
    return file(sections, "oumi train -c FILE", job)


def openrlhf(job: Job) -> str:
    """OpenRLHF's command of supervised fine-tuning."""
    said_of_texts(job, "openrlhf")
    training, gpus = job.training, job.hardware.gpus * job.hardware.nodes
    if not training.precision.startswith("deepspeed-"):
        raise InvalidJob("OpenRLHF trains under DeepSpeed: write deepspeed-bf16, and zero1 to zero3", "training.precision")
    said: dict[str, Any] = {"model.model_name_or_path": job.model, "data.max_len": training.sequence_length}
    said |= {"train.micro_batch_size": training.micro_batch_size}
    said["train.batch_size"] = training.micro_batch_size * training.gradient_accumulation_steps * gpus
    said["ds.zero_stage"] = (job.parallelism.strategy or "zero1").removeprefix("zero")
    said |= {"ds.param_dtype": training.precision.removeprefix("deepspeed-"), "ds.attn_implementation": training.attention}
    said["max_norm"] = 1.0 if training.gradient_clipping else 0.0
    switches = {
        "ds.adam_offload": job.offload.optimizer == "cpu",
        "ds.use_liger_kernel": training.implementation == "liger",
        "ds.load_in_4bit": training.quantization is not None,
        "model.gradient_checkpointing_enable": training.activation_checkpointing == "full",
        "model.gradient_checkpointing_reentrant": training.reentrant_checkpointing,
    }
    adapters = lora(job, "ds.lora.rank", "ds.lora.target_modules", "modules_to_save")
    if adapters:
        targets, dropout = adapters["ds.lora.target_modules"], adapters.pop("lora_dropout")
        adapters["ds.lora.target_modules"] = targets if isinstance(targets, str) else ",".join(targets)
        adapters["ds.lora.dropout"] = dropout
    said |= adapters | {name: True for name, on in switches.items() if on}
    return command(["deepspeed", "--num_gpus", str(job.hardware.gpus), "--module", "openrlhf.cli.train_sft"], said, dashes=False)
