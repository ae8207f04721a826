"""LLaMA-Factory's second version (`USE_V1=1 llamafactory-cli sft FILE`).

src/llamafactory/v1 at ff6d4d12eeb0: core/model_engine.py (what is trained whole is float32), core/base_trainer.py (its own loss,
of a copy of the logits; gradients are always clipped), plugins/trainer_plugins/distributed/fsdp2.py (bf16 is a policy of FSDP2
alone: without it everything is computed in the type that it is held in).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from estimator.contract.errors import InvalidValue, NotModelled, WillItFitError
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration
from estimator.specs.resolve import resolve

PREFERENCES = re.compile(r"(?:^|[^a-z])(dpo|rm)(?:[^a-z]|$)")
PACKED = ("padding_free", "dynamic_padding_free")


def read(conf: Configuration) -> None:
    """The job that a file is."""
    conf.put("model", conf.text("model"))
    part = conf.part("peft_config")
    kind = str(part.get("name", "full")) if part else "full"
    _refuse(conf, part, kind)
    strategy = _spread(conf)
    _quantized(conf)
    if kind == "lora":
        _adapter(conf, part)
    elif kind == "freeze":
        layers = _number(conf, part, "freeze_trainable_layers", 2)
        conf.put("training.trainable", {"last": layers} if layers > 0 else {"layers": f"0-{-layers - 1}"})
        conf.leave("peft_config.name", "freeze: the trained layers are float32 there, in the job of the model's type")
    elif kind != "full":
        raise InvalidValue(f"{kind[:40]!r} is none of lora and freeze", conf.where("peft_config"))
    _types(conf, kind, strategy)
    _batches(conf)
    _kernels(conf)
    trainer.checkpointing(conf, conf.yes("enable_activation_checkpointing"))
    trainer.attention(conf, "flash_attn")
    if (conf.get("parallelism.context") or 1) == 1:
        conf.put("training.loss", "shifted")
    _optimizer(conf)
    conf.put("training.gradient_clipping", True)
    _preferences(conf, kind)
    trainer.segments(conf, "llamafactory-cli sets it where it starts several processes (launcher.py)", "llamafactory-cli", 2)
    spreading.hardware(conf)


def _number(conf: Configuration, part: Mapping[str, Any], key: str, usual: int) -> int:
    value = part.get(key, usual)
    if isinstance(value, str) and value.lstrip("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**24:
        raise InvalidValue(f"{key}: {str(value)[:40]!r} is no number of such a thing", conf.where("peft_config"))
    return value


def _refuse(conf: Configuration, part: Mapping[str, Any], kind: str) -> None:
    """Raise for what trains nothing, or is not modelled."""
    if kind == "lora" and part.get("export_dir"):
        raise NotModelled("it merges and saves a model, and neither trains nor serves it", conf.where("peft_config"))
    if conf.text("model_class") == "cls":
        raise NotModelled(
            "a reward for each token (model_class: cls) is not modelled: write objective reward", conf.where("model_class")
        )


def _spread(conf: Configuration) -> str:
    """The strategy: FSDP2, DeepSpeed by Accelerate, or DDP where nothing is said."""
    part = conf.part("dist_config")
    name = str(part.get("name", "ddp")) if part else "ddp"
    if name == "deepspeed":
        if not isinstance(path := part.get("config_file"), str):
            raise InvalidValue("names no config_file: DeepSpeed's settings are in it", conf.where("dist_config"))
        spreading.of_deepspeed(conf, "dist_config", path)
    elif name not in ("fsdp2", "ddp"):
        raise NotModelled(f"{name[:40]} is not modelled: write fsdp2 or deepspeed", conf.where("dist_config"))
    elif name == "fsdp2":
        conf.put("parallelism.strategy", name)
        if part.get("reshard_after_forward") is False:
            conf.put("parallelism.reshard_after_forward", False)
        if part.get("offload_params"):
            for one in ("parameters", "gradients", "optimizer"):
                conf.put(f"offload.{one}", "cpu")
        if (replicas := conf.whole("mp_replicate_size") or 1) > 1:
            conf.put("parallelism.strategy", "hsdp")
            conf.put("parallelism.replicas", replicas)
    spreading.degrees(conf, context="cp_size")
    spreading.settle(conf)
    return str(conf.get("parallelism.strategy") or "none")


def _quantized(conf: Configuration) -> None:
    part = conf.part("quant_config")
    if not part or (part.get("name") == "auto" and part.get("quantization_bit") is None):
        return
    compute = str(part.get("compute_dtype", "float16"))
    if compute not in trainer.TYPES:
        raise InvalidValue(f"{compute[:40]!r} is no type; write {', '.join(trainer.TYPES)}", conf.where("quant_config"))
    double = str(part.get("double_quantization", True)).lower() != "false"
    bits = part.get("quantization_bit") or 4
    if bits not in (4, 8, "4", "8"):
        raise InvalidValue(f"{str(bits)[:40]!r} bits are none of 4 and 8", conf.where("quant_config"))
    trainer.quantized(conf, int(bits), double, str(part.get("quantization_type", "nf4")), trainer.TYPES[compute])
    if "compute_dtype" not in part and int(bits) == 4:
        conf.assume("compute_dtype", compute, "what LLaMA-Factory v1's 4-bit layers compute in")


def _adapter(conf: Configuration, part: Mapping[str, Any]) -> None:
    given = part.get("target_modules", "all")
    targets = "all-linear" if given == "all" else [given] if isinstance(given, str) else list(given or [])
    found: dict[str, Any] = {"type": "dora" if part.get("use_dora") else "lora", "rank": _number(conf, part, "r", 8)}
    if dropout := part.get("lora_dropout", 0.05):
        found["dropout"] = dropout
    if saved := part.get("modules_to_save"):
        found["modules_to_save"] = saved if isinstance(saved, list) else [saved]
    conf.put("training.adapter", found | {"targets": targets, "dtype": "fp32"})
    conf.assume("adapter dtype", "float32", "PEFT holds adapters so (autocast_adapter_dtype)")


def _types(conf: Configuration, kind: str, strategy: str) -> None:
    """`bf16` is FSDP2's policy; what is trained whole is float32, everything else of the checkpoint's type."""
    half = conf.yes("bf16")
    if strategy.startswith("zero"):
        conf.put("training.precision", "deepspeed-bf16")
        conf.assume("precision", "deepspeed-bf16", "unless DeepSpeed's file turns bf16 off")
    elif strategy.startswith(("fsdp", "hsdp")) and half:
        conf.put("training.precision", "bf16-mixed")
        if kind != "full":
            conf.put("training.dtypes.weights", "bf16")
    else:
        conf.put("training.precision", "32-true" if kind == "full" else "bf16-true")
        why = "bf16 is a policy of its FSDP2; without that, weights are computed with as they are held"
        conf.assume("bf16", False, f"{why}: float32" if kind == "full" else why)


def _batches(conf: Configuration) -> None:
    rows, tokens = conf.whole("micro_batch_size") or 1, conf.whole("cutoff_len") or 2048
    conf.put("training.micro_batch_size", rows)
    ranks = max(1, conf.gpus // (conf.get("parallelism.context") or 1))
    whole = conf.whole("global_batch_size") or rows * ranks
    if whole % (rows * ranks):
        raise InvalidValue(f"{whole} is no multiple of {ranks} ranks' {rows} sequences", conf.where("global_batch_size"))
    conf.put("training.gradient_accumulation_steps", whole // (rows * ranks))
    strategy = str(conf.text("batching_strategy")).lower()
    if strategy in PACKED:
        if strategy == "padding_free":
            trainer.length(conf, tokens, "cutoff_len")
        trainer.without_padding(conf, tokens, rows)
    elif strategy in ("normal", "dynamic_batching"):
        trainer.length(conf, tokens, "cutoff_len")
    else:
        raise InvalidValue(
            f"{strategy[:40]!r} is none of normal, dynamic_batching, {', '.join(PACKED)}", conf.where("batching_strategy")
        )
    if workers := conf.whole("batching_workers"):
        conf.put("host.data_loader_workers", workers)


def _kernels(conf: Configuration) -> None:
    """Liger's modules, of some kinds of models, without its fused loss (`require_logits`); `auto` is of NPUs."""
    part = conf.part("kernel_config")
    names = [name.strip() for name in str(part.get("name", "")).split(",") if name.strip()] if part else []
    try:
        model = resolve(conf.get("model") or "", conf.around.allow_files).spec.model_type
    except WillItFitError:
        model = ""
    for name in names:
        if name == "liger_kernel" and model in conf.facts.tables["liger"]["kinds"]:
            trainer.liger(conf, True, fused=False)
        elif name == "liger_kernel":
            conf.assume(
                "kernel_config", None, "its Liger kernels are of Qwen3 and Qwen3.5 alone; others' modules stay as they are"
            )
        elif name != "auto":
            conf.leave("kernel_config", f"{name}: read as transformers' own modules")


def _optimizer(conf: Configuration) -> None:
    part = conf.part("optim_config")
    name = str(part.get("name", "adamw")) if part else "adamw"
    if name not in ("adamw", "muon"):
        conf.leave("optim_config", f"{name[:40]}: a job has no such optimizer; AdamW is taken")
    conf.put("training.optimizer", "muon" if name == "muon" else "adamw_torch")


def _preferences(conf: Configuration, kind: str) -> None:
    """What the command or the file's name says of preferences: both answers stand in one row, which is cut at `cutoff_len`."""
    said = next(
        (
            found[1]
            for text in (conf.launch.program, PurePath(conf.around.name).name)
            if (found := PREFERENCES.search(text.lower()))
        ),
        "",
    )
    if said == "rm":
        raise NotModelled("rewards of LLaMA-Factory v1 are not modelled: write objective reward", conf.where("model_class"))
    if not said:
        return
    if kind == "full" and conf.text("pref_loss") == "sigmoid":
        raise NotModelled(
            "a reference that is a copy of the sharded model is not modelled: write pref_loss: orpo, or lora",
            conf.where("pref_loss"),
        )
    conf.leave("trainer", "dpo: answered as fine-tuning on rows that hold both answers; the pass that only scores is not in it")
