"""oumi's YAML, whose trainers are TRL's and transformers'; whose engines are in `oumi_inference.py`.

oumi 0.9: core/configs/params/*.py, core/trainers."""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import NotModelled
from estimator.exchange import rollouts, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import WORDS, Configuration
from estimator.exchange.frameworks import oumi_inference

OBJECTIVES = {"TRL_DPO": "dpo", "TRL_KTO": "kto", "TRL_GRPO": "grpo"}
TOWERS = re.compile("vision|visual|audio|image|tower|projector")
"""Parts of the names of what sees or hears."""
SHORT = {"-c": "config"}
"""The short option of `oumi train`."""
SECTIONS = ("model", "data", "training", "peft", "fsdp", "deepspeed", "generation")


def read(conf: Configuration) -> None:
    """The job that a file is."""
    words = conf.given.get(WORDS)
    if words and not {"train", "infer"}.intersection(map(str, words)):
        raise NotModelled(f"oumi's {str(words[0])[:40]} trains nothing: `oumi train` and `oumi infer` are read", "oumi")
    _flatten(conf)
    if conf.has("tasks") and not conf.has("training.trainer_type"):
        raise NotModelled("it is of an evaluation, which trains nothing", conf.where("tasks"))
    if (words and "infer" in words) or conf.has("engine") or any(key.startswith("generation.") for key in conf.given):
        oumi_inference.read(conf)
        return
    conf.put("model", conf.text("model.model_name"))
    _spread(conf)
    weights = trainer.dtype(conf, "model.torch_dtype_str")
    mixed = {"BF16": "bf16", "FP16": "fp16"}.get(str(conf.take("training.mixed_precision_dtype") or "").upper())
    if conf.yes("training.use_peft"):
        bits = (conf.whole("peft.q_lora_bits") or 4) if conf.yes("peft.q_lora") else None
        trainer.quantized(conf, bits, conf.yes("peft.use_bnb_nested_quant"), conf.text("peft.bnb_4bit_quant_type") or "fp4")
        if bits == 4 and not conf.has("peft.bnb_4bit_compute_dtype"):
            conf.put("training.quantization_compute", "fp32")
            conf.assume("peft.bnb_4bit_compute_dtype", "float32", "oumi's own")
        elif bits == 4 and trainer.dtype(conf, "peft.bnb_4bit_compute_dtype") == "fp32":
            conf.put("training.quantization_compute", "fp32")
        given = conf.names("peft.lora_target_modules")
        rank, dropout = conf.whole("peft.lora_r") or 8, conf.number("peft.lora_dropout") or 0.0
        targets = "all-linear" if given == ["all-linear"] else given or trainer.pefts_targets(conf)
        conf.put("training.adapter", {"type": "lora", "rank": rank, "dropout": dropout, "targets": targets, "dtype": "fp32"})
        if saved := conf.names("peft.lora_modules_to_save"):
            conf.put("training.adapter.modules_to_save", saved)
    trainer.precision(conf, weights, mixed)
    conf.put("training.micro_batch_size", conf.whole("training.per_device_train_batch_size"))
    conf.put("training.gradient_accumulation_steps", conf.whole("training.gradient_accumulation_steps"))
    kind = str(conf.take("training.trainer_type")).upper()
    if kind != "TRL_GRPO":
        trainer.length(conf, conf.whole("model.model_max_length"), "model.model_max_length")
    on = conf.yes("training.enable_gradient_checkpointing")
    trainer.checkpointing(conf, on, bool(trainer.reentrant(conf, "training.gradient_checkpointing_kwargs")))
    trainer.optimizer(conf, "training.optimizer")
    trainer.clipping(conf, "training.max_grad_norm")
    trainer.attention(conf, "model.attn_implementation")
    trainer.liger(conf, conf.yes("model.enable_liger_kernel"))
    _frozen(conf)
    if kind == "TRL_GRPO":
        _rollouts(conf)
    elif kind in OBJECTIVES:
        conf.put("training.objective", {"type": OBJECTIVES[kind]})
    elif kind not in ("TRL_SFT", "HF", "OUMI"):
        conf.leave("training.trainer_type", f"{kind}: not modelled; answered as supervised fine-tuning")
    spreading.hardware(conf)


def _rollouts(conf: Configuration) -> None:
    """GRPO as TRL has it, whose beta is 0."""
    part = conf.part("training.grpo")
    conf.given |= {f"training.grpo.{key}": value for key, value in part.items()}
    prompt, answer = (conf.whole(f"training.grpo.max_{name}_length") for name in ("prompt", "completion"))
    tokens = rollouts.lengths(conf, "training.grpo.max_prompt_length", prompt, answer)
    found: dict[str, Any] = {"type": "grpo", "prompt_length": tokens}
    if part.get("use_vllm"):
        share = conf.number("training.grpo.vllm_gpu_memory_utilization")
        found |= rollouts.engine(conf.text("training.grpo.vllm_mode") or "colocate", share or 0.9)
    else:
        found["generation"] = {"engine": "transformers"}
    conf.put("training.objective", found)
    conf.skip("model.model_max_length", "training.reward_functions")


def _frozen(conf: Configuration) -> None:
    """What is frozen, or not adapted: of towers the answer, which is of texts, has no gradients either way."""
    for key in ("model.freeze_layers", "peft.lora_exclude_modules"):
        others = [name for name in conf.names(key) if not TOWERS.search(name)]
        if others:
            conf.leave(key, f"{', '.join(others)[:80]}: read as trained, too; an upper bound")


def _flatten(conf: Configuration) -> None:
    """Sections' keys by their dotted names."""
    flat: dict[str, Any] = {}
    for section, value in conf.given.items():
        if section in SECTIONS and isinstance(value, dict):
            flat |= {f"{section}.{key}": inner for key, inner in value.items()}
        else:
            flat[section] = value
    conf.given = flat


def _spread(conf: Configuration) -> None:
    """FSDP or DeepSpeed, whichever is enabled."""
    if conf.yes("fsdp.enable_fsdp"):
        given: dict[str, Any] = {"sharding_strategy": conf.take("fsdp.sharding_strategy")}
        if conf.yes("fsdp.cpu_offload"):
            given["offload_params"] = True
        spreading.of_fsdp(conf, "full_shard", given)
    if conf.yes("deepspeed.enable_deepspeed"):
        if path := conf.text("deepspeed.deepspeed_config_path"):
            spreading.of_deepspeed(conf, "deepspeed.deepspeed_config_path", path)
        else:
            stage = (conf.text("deepspeed.zero_stage") or "ZERO_0")[-1:]
            moved = {name: conf.part(f"deepspeed.{name}") for name in ("offload_optimizer", "offload_param")}
            moved = {name: {"device": str(part.get("device", "none")).lower()} for name, part in moved.items() if part}
            zero = {"stage": int(stage) if stage in "0123" else 0, **moved}
            spreading.of_deepspeed(conf, "deepspeed", {"zero_optimization": zero})
    spreading.settle(conf)
