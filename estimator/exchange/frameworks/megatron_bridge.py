"""Megatron-Bridge's command: a recipe, and settings in place of its own, by the reader of Megatron-LM's arguments.

Megatron-Bridge at 067f987df03b: scripts/training/run_recipe.py, recipes/, training/config.py (`ConfigContainer`).
"""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import InvalidValue, NotModelled
from estimator.exchange import megatron
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import NO, Configuration
from estimator.exchange.found import LeftOut
from estimator.exchange.frameworks.ms_swift_megatron import narrow

VALUES = {
    "--tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "--context-parallel-size": "model.context_parallel_size",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
    megatron.CHUNKS: "model.virtual_pipeline_model_parallel_size",
    megatron.GROUP: "model.microbatch_group_size_per_vp_stage",
    "--cp-comm-type": "model.cp_comm_type",
    "--micro-batch-size": "train.micro_batch_size",
    "--seq-length": "dataset.seq_length",
    "--recompute-granularity": "model.recompute_granularity",
    "--recompute-method": "model.recompute_method",
    "--recompute-num-layers": "model.recompute_num_layers",
    "--recompute-modules": "model.recompute_modules",
    "--cross-entropy-fusion-impl": "model.cross_entropy_fusion_impl",
    "--moe-expert-capacity-factor": "model.moe_expert_capacity_factor",
    "--mtp-num-layers": "model.mtp_num_layers",
}
"""Megatron-LM's arguments that have a value, and where Megatron-Bridge has it."""
SWITCHES = {
    "--sequence-parallel": "model.sequence_parallel",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
    "--tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "--cross-entropy-loss-fusion": "model.cross_entropy_loss_fusion",
    "--optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
    "--use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
}
"""Those that are on or off."""
BATCH, OPTIMIZER, PRECISION = "train.global_batch_size", "optimizer.use_distributed_optimizer", "mixed_precision"
SHORT = {
    "-ms": "max_steps",
    "-gb": "global_batch_size",
    "-mb": "micro_batch_size",
    "-sl": "seq_length",
    "-tp": "tensor_model_parallel_size",
    "-pp": "pipeline_model_parallel_size",
    "-cp": "context_parallel_size",
    "-vp": "virtual_pipeline_model_parallel_size",
    "-ep": "expert_model_parallel_size",
    "-etp": "expert_tensor_parallel_size",
}
"""Short options of run_recipe.py."""
MODES = {"pretrain": "pretrain", "sft": "sft", "lora": "peft", "dora": "peft"}
RANK, DROPOUT = 32, 0.0
"""Of LoRA, unless it is said (peft/lora.py)."""
_GPUS = re.compile(r"_(?P<kind>pretrain|sft|peft)_(?P<gpus>\d+)gpu_")


def read(conf: Configuration) -> None:
    """The job that a recipe with its settings is."""
    name, row = _recipe(conf)
    match = _GPUS.search(name)
    assert match is not None
    settings = {**usual(row), **conf.given}
    conf.skip(*VALUES.values(), *SWITCHES.values(), BATCH, OPTIMIZER, PRECISION)
    conf.put("model", row["model"])
    words = [f"{flag} {_shown(settings[key])}" for flag, key in VALUES.items() if settings.get(key) not in (None, "null")]
    words += [flag for flag, key in SWITCHES.items() if _on(settings.get(key))]
    if _on(settings.get(OPTIMIZER)):
        words.append("--use-distributed-optimizer")  # either is enough, as `ConfigContainer.validate` makes both alike
    words += _precision(conf, str(settings[PRECISION]), settings)
    found = megatron.read(" ".join(words))
    conf.job = {**found.job, "model": row["model"]}
    conf.left_out += [LeftOut(key=one.key, why=one.why) for one in found.left_out]
    if row.get("reduces") == "bf16" or (
        "ddp.grad_reduce_in_fp32" in conf.given and not _on(conf.given["ddp.grad_reduce_in_fp32"])
    ):
        conf.leave("ddp.grad_reduce_in_fp32", "gradients that are summed in bf16 are read as float32; an upper bound")
    mode = conf.text("mode")
    if mode is not None and mode not in MODES:
        raise InvalidValue(f"{mode[:40]!r} is none of {', '.join(MODES)}", conf.where("mode"))
    if match["kind"] == "peft":
        _adapter(conf, mode == "dora")
    ranks = 1
    for degree in ("tensor", "pipeline", "context"):
        ranks *= conf.get(f"parallelism.{degree}") or 1
    if conf.launch.gpus is None and conf.around.hardware is None:
        asked = max(int(match["gpus"]), ranks)
        conf.launch.gpus, conf.launch.nodes = (8, asked // 8) if asked > 8 and asked % 8 == 0 else (asked, 1)
        conf.assume("gpus", asked, "as many as the recipe is made for")
    spreading.hardware(conf)
    copies = max(1, conf.gpus // ranks)
    if copies == 1:
        conf.put("parallelism.strategy", None)  # with one copy there is nothing to share out
    rows = conf.get("training.micro_batch_size") or 1
    conf.put("training.gradient_accumulation_steps", max(1, (conf.whole(BATCH) or row["batch"]) // (rows * copies)))
    if match["kind"] != "pretrain":
        conf.assume("dataset", True, "samples are packed offline: every row is full (recipes/common.py)")
    narrow(conf)


def usual(row: dict[str, Any]) -> dict[str, Any]:
    """A recipe's settings by their dotted names."""
    names = {"tp": "tensor", "pp": "pipeline", "vp": "virtual_pipeline", "cp": "context", "ep": "expert"}
    found: dict[str, Any] = {f"model.{name}_model_parallel_size": row[key] for key, name in names.items() if key in row}
    if "cp" in row:
        found["model.context_parallel_size"] = found.pop("model.context_model_parallel_size")
    if "etp" in row:
        found["model.expert_tensor_parallel_size"] = row["etp"]
    granularity, *rest = row.get("recompute") or [None]
    if granularity == "full":
        found |= {"model.recompute_method": rest[0], "model.recompute_num_layers": rest[1]}
    elif rest:
        found["model.recompute_modules"] = rest
    found |= {"model.recompute_granularity": granularity, "model.sequence_parallel": row.get("sp", False)}
    found |= {"model.cross_entropy_loss_fusion": "loss" in row, "model.cross_entropy_fusion_impl": row.get("loss", "native")}
    found |= {f"ddp.overlap_{'grad_reduce' if one == 'grad' else 'param_gather'}": True for one in row.get("overlap", ())}
    found |= {"dataset.seq_length": row["length"], "train.micro_batch_size": row["rows"], BATCH: row["batch"]}
    return found | {OPTIMIZER: True, PRECISION: "bf16_mixed"}


def _recipe(conf: Configuration) -> tuple[str, dict[str, Any]]:
    """A recipe by its own name, by an older one, or by a model and a mode."""
    recipes, older = conf.facts.tables["recipes"], conf.facts.tables["older"]
    asked = (conf.text("recipe") or "").removesuffix("_config")
    if not asked and (model := conf.text("model")):
        asked = f"{model}_{MODES.get(conf.text('mode') or 'pretrain', 'pretrain')}"
    if not asked:
        raise InvalidValue("no recipe is named: write --recipe, or --model with --mode", "megatron-bridge --recipe")
    name = older.get(asked, asked)
    if name not in recipes:
        raise NotModelled(
            f"{asked[:60]!r} is no recipe that is read: {len(recipes)} for texts in bf16 on H100 are; write the same with "
            "Megatron-LM's arguments, or a job with implementation: megatron",
            conf.where("recipe"),
        )
    return name, dict(recipes[name])


def _precision(conf: Configuration, name: str, settings: dict[str, Any]) -> list[str]:
    """Megatron-LM's arguments for a recipe of mixed precision by its name."""
    known = conf.facts.tables["precisions"].get(name)
    if known is None:
        conf.leave(PRECISION, f"{name[:60]}: not modelled; read as bf16_mixed")
        return ["--bf16"]
    if known.get("half") == "fp16":
        return ["--fp16"]
    if "recipe" not in known:
        return ["--bf16"]
    if known.get("ends"):
        conf.leave(PRECISION, f"{name}: the first and the last layer stay in bf16, which is not modelled; read as fp8 in all")
    gathers = settings.get("mixed_precision.fp8_param_gather", known.get("gathers", False))
    conf.skip("mixed_precision.fp8_param_gather")
    if known["recipe"] == "mxfp8" and _on(gathers):
        conf.leave("mixed_precision.fp8_param_gather", "weights in mxfp8 alone are not modelled: read as beside those in bf16")
        gathers = False
    history = [f"--fp8-amax-history-len {known['history']}"] if "history" in known else []
    gather = ["--fp8-param-gather"] if _on(gathers) else []
    return ["--bf16", f"--fp8-format {known['format']}", f"--fp8-recipe {known['recipe']}", *gather, *history]


def _adapter(conf: Configuration, decomposed: bool) -> None:
    """LoRA of every linear layer of Megatron's, unless some are named."""
    if decomposed:
        conf.leave("mode", "dora: read as lora, without the lengths of its columns")
    dropped = conf.number("peft.dropout") if conf.has("peft.dropout") else DROPOUT
    rank = conf.whole("peft.dim") or RANK
    conf.put("training.adapter", {"type": "lora", "rank": rank, **({"dropout": dropped} if dropped else {})})
    if not conf.has("peft.dim"):
        conf.assume("peft.dim", RANK, "Megatron-Bridge's own")
    if given := conf.names("peft.target_modules"):
        conf.leave("peft.target_modules", f"{' '.join(given)[:60]}: read as all linear layers")


def _on(value: Any) -> bool:
    """Whether a setting is on, in whatever words."""
    return str(value).lower() not in NO


def _shown(value: Any) -> str:
    """A value as Megatron-LM's arguments have it; a list of Hydra's is in brackets."""
    given = value if isinstance(value, list) else str(value).strip("[]").split(",")
    return " ".join(str(one).strip(" '\"") for one in given)
