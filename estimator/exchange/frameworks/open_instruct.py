"""open-instruct's scripts: supervised fine-tuning and preferences with Accelerate, and preferences with OLMo-core.

open_instruct/{finetune,dpo_tune_cache,dpo_utils,dpo}.py at e6c3044aa620: the model is loaded in bf16; the reference's scores are
computed before training (dpo_tune_cache, dpo); OLMo-core shards bf16 weights within a node, and steps in bf16.
"""

from __future__ import annotations

from pathlib import PurePath

from estimator.contract.errors import NotModelled
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration

SCRIPTS = ("finetune", "dpo_tune", "dpo_tune_cache", "dpo", "reward_modeling")
OLMO_CORE = ("dpo",)


def read(conf: Configuration) -> None:
    """The job that arguments are."""
    script = PurePath(conf.launch.program.partition(" ")[0]).stem
    if script not in SCRIPTS:
        raise NotModelled(
            f"open-instruct's {script[:40]}, which writes answers on other GPUs, is not read; read are {', '.join(SCRIPTS)}",
            "open-instruct",
        )
    conf.put("model", conf.text("config_name") if _is_path(conf.text("model_name_or_path")) else conf.text("model_name_or_path"))
    if _is_path(conf.text("model_name_or_path")) and conf.has("config_name"):
        conf.assume("model", conf.text("config_name"), "the checkpoint is a folder that is not here; its configuration is named")
    conf.skip("config_name")
    if script in OLMO_CORE:
        _olmo_core(conf)
    else:
        spreading.spread(conf)
        trainer.precision(conf, "bf16", "bf16")
        _adapter(conf)
    trainer.run(conf)
    tokens, rows = conf.whole("max_seq_length"), conf.whole("per_device_train_batch_size") or 8
    packs = conf.has("packing") and conf.yes("packing")
    if packs and tokens and script == "finetune":
        trainer.without_padding(conf, tokens, rows)
    else:
        trainer.length(conf, tokens, "max_seq_length")
    trainer.checkpointing(conf, conf.yes("gradient_checkpointing"))
    paged, bits = conf.yes("dpo_use_paged_optimizer"), conf.yes("use_8bit_optimizer")
    name = ("paged-adamw-8bit" if bits else "paged-adamw") if paged else ("adamw-8bit" if bits else "adamw_torch_fused")
    conf.put("training.optimizer", name)
    if (conf.number("max_grad_norm") or 0) > 0:
        conf.put("training.gradient_clipping", True)
    if conf.yes("use_flash_attn"):
        conf.put("training.attention", "flash_attention_2")
    trainer.liger(conf, conf.yes("use_liger_kernel"))
    if script.startswith("dpo"):
        cached = script != "dpo_tune" or (conf.has("loss_type") and conf.text("loss_type") == "simpo")
        conf.put("training.objective", {"type": "dpo", **({"reference": "precomputed"} if cached else {})})
        if cached:
            conf.assume("reference", "precomputed", "its scores are computed before training")
    elif script == "reward_modeling":
        conf.put("training.objective", "reward")
    spreading.hardware(conf)


def _is_path(name: str | None) -> bool:
    return bool(name) and str(name).startswith(("/", "./", "~", "gs://"))


def _olmo_core(conf: Configuration) -> None:
    """OLMo-core's trainer: shards within a node, copies over nodes."""
    if conf.gpus > 1:
        conf.put("parallelism.strategy", "hsdp" if (conf.launch.nodes or 1) > 1 else "fsdp2")
    for key in ("tensor_parallel_degree", "context_parallel_degree", "pipeline_parallel_degree"):
        if (degree := conf.whole(key)) and degree > 1:
            conf.leave(key, f"{degree}: not modelled in OLMo-core; read as data parallelism")
    conf.put("training.precision", "bf16-true")
    conf.assume(
        "precision", "bf16-true", "OLMo-core's model is made bf16, and AdamW's states with it; gradients are reduced in float32"
    )


def _adapter(conf: Configuration) -> None:
    if not (conf.yes("use_lora") or conf.yes("use_qlora")):
        return
    trainer.quantized(conf, 4 if conf.yes("use_qlora") else None, double=True)
    targets = ["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]
    trainer.lora(conf, targets=targets, kept="fp32")
