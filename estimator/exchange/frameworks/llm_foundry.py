"""LLM Foundry's YAML, which Composer trains.

scripts/train/train.py and llmfoundry/models at 8c8dd48f7216, composer/distributed/dist_strategy.py: FSDP1 over float32 shards;
`PURE` computes and reduces in the type of `precision`, `DEFAULT` reduces in float32.
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration
from estimator.exchange.nested import flattened, interpolated

SIZES = ("d_model", "n_heads", "n_layers", "vocab_size", "max_seq_len", "expansion_ratio")
PRECISIONS = {"amp_bf16": "bf16-mixed", "amp_fp16": "16-mixed", "fp32": "32-true", "bf16": "bf16-true"}


def read(conf: Configuration) -> None:
    """The job that a file is."""
    conf.given = interpolated(flattened(conf.given))
    conf.put("model", _model(conf))
    precision = (conf.text("precision") or "amp_bf16").lower()
    if precision not in PRECISIONS:
        conf.leave("precision", f"{precision[:40]}: read as amp_bf16")
    conf.put("training.precision", PRECISIONS.get(precision, "bf16-mixed"))
    _spread(conf)
    rows = conf.given.get("device_train_microbatch_size")
    if rows in (None, "auto"):
        conf.skip("device_train_microbatch_size")
        conf.assume(
            "device_train_microbatch_size", 1, "auto: Composer halves it until a step fits, so the file says none; the least"
        )
        rows = 1
    else:
        rows = conf.whole("device_train_microbatch_size") or 1
    conf.put("training.micro_batch_size", rows)
    whole = conf.whole("global_train_batch_size") or rows
    conf.put("training.gradient_accumulation_steps", max(1, whole // (rows * conf.gpus)))
    tokens = conf.whole("max_seq_len")
    conf.put("training.sequence_length", tokens) if tokens else trainer.length(conf, None, "max_seq_len")
    _step(conf)
    if conf.yes("expandable_segments"):
        trainer.segments(conf, "expandable_segments is on unless it is said")
    spreading.hardware(conf)


def _model(conf: Configuration) -> Any:
    """A model of the hub, or MPT's sizes."""
    kind = conf.text("model.name") or ""
    name = conf.text("model.pretrained_model_name_or_path")
    flash = conf.text("model.attn_config.attn_impl") or conf.text("model.config_overrides.attn_config.attn_impl")
    if flash in ("flash", "torch") and (kind.startswith("mpt") or "mpt" in str(name)):
        conf.leave(
            "model.attn_config.attn_impl",
            f"{flash}: the model is taken as transformers has it, whose attention keeps the scores, with ALiBi in place of "
            "learned positions; an upper bound",
        )
    elif flash == "flash":
        conf.put("training.attention", "flash_attention_2")
    if name is not None:
        return name
    if not kind.startswith("mpt"):
        raise InvalidValue(
            f"{kind[:40]!r} is no model that is read: hf_causal_lm, or mpt_causal_lm with its sizes", conf.where("model.name")
        )
    sizes = {size: found for size in SIZES if (found := conf.whole(f"model.{size}")) is not None}
    return {"model_type": "mpt", **sizes}


def _spread(conf: Configuration) -> None:
    part = "fsdp_config"
    if any(key.startswith(part) for key in conf.given):
        said = conf.text(f"{part}.sharding_strategy") or "FULL_SHARD"
        if said == "NO_SHARD":
            conf.put("parallelism.strategy", "ddp")
        else:
            conf.put("parallelism.strategy", "fsdp1")
            if said != "FULL_SHARD":
                conf.leave(f"{part}.sharding_strategy", f"{said[:40]}: read as FULL_SHARD")
        if (conf.text(f"{part}.mixed_precision") or "DEFAULT").upper() == "PURE":
            conf.leave(f"{part}.mixed_precision", "PURE: gradients are reduced in bf16; read as reduced in float32")
        conf.put("training.autocast", True)
    spreading.settle(conf)
    reentrant = conf.has(f"{part}.activation_checkpointing_reentrant") and conf.yes(f"{part}.activation_checkpointing_reentrant")
    trainer.checkpointing(
        conf, conf.has(f"{part}.activation_checkpointing") and conf.yes(f"{part}.activation_checkpointing"), reentrant
    )
    if conf.has(f"{part}.activation_cpu_offload") and conf.yes(f"{part}.activation_cpu_offload"):
        conf.put("offload.activations", "cpu")


def _step(conf: Configuration) -> None:
    """The optimizer, clipping, and evaluation."""
    name = (conf.text("optimizer.name") or "decoupled_adamw").lower()
    known = conf.facts.tables["optimizers"].get(name)
    if known is None:
        conf.leave("optimizer.name", f"{name[:40]}: a job has no such optimizer; AdamW is taken")
    for field, value in (known or conf.facts.tables["optimizers"]["decoupled_adamw"]).items():
        conf.put(f"training.{field}", value)
    if conf.text("algorithms.gradient_clipping.clipping_type") == "norm":
        conf.put("training.gradient_clipping", True)
    loads = any(key.startswith("eval_loader") for key in conf.given)
    trainer.evaluation(conf, loads, conf.whole("device_eval_batch_size"))
