"""NeMo Automodel's YAML recipes. nemo-automodel 0.7: components/distributed/config.py, components/_peft/lora.py, recipes/llm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.contract.job.adapter import ALL_LINEAR
from estimator.exchange import roles, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration

HELD = ("master_weights", "store_param_remainders", "exp_avg_dtype", "exp_avg_sq_dtype", "master_weight_dtype")
"""Settings of an optimizer of what it holds, and in which type (Transformer Engine's FusedAdam)."""

EVERYTHING, FUSED = ".*", "out_proj"
"""A pattern of all linear layers, the output layer among them; and the layer that a mixer's kernel has within it."""
MIXED = ["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
"""The linear layers of those that are mixtures of experts, too, but that one."""


def read(conf: Configuration) -> None:
    """The job that a recipe is."""
    model = conf.part("model")
    inner = model.get("config")
    name = model.get("pretrained_model_name_or_path")
    if name is None and isinstance(inner, Mapping):
        name = inner.get("pretrained_model_name_or_path")
    if not isinstance(name, str):
        raise InvalidValue("names no pretrained_model_name_or_path", conf.where("model"))
    conf.put("model", name)
    if model.get("backend"):
        conf.leave("model.backend", conf.facts.left["model.backend"])
    conf.given["torch_dtype"] = model.get("torch_dtype")
    for name in ("compile", "fp8"):
        if conf.part(name).get("enabled"):
            conf.leave(name, f"enabled: {conf.facts.left[name]}")
    weights = trainer.dtype(conf, "torch_dtype")
    _spread(conf)
    conf.put("training.precision", {"bf16": "bf16-true", "fp16": "16-true", "fp32": "bf16-mixed"}[weights])
    _adapter(conf)
    _batches(conf)
    given = str(conf.part("optimizer").get("_target_", "torch.optim.AdamW")).rpartition(".")[2]
    known = conf.facts.tables["optimizers"].get(given.lower())
    if known is None:
        conf.leave("optimizer", f"{given}: a job has no such optimizer; AdamW is taken")
    conf.put("training.optimizer", known or "adamw_torch")
    if held := [name for name in HELD if conf.part("optimizer").get(name)]:
        conf.leave("optimizer", f"{', '.join(held)}: states and copies of weights are read as in the type of the weights")
    if frozen := conf.part("freeze_config"):
        conf.leave("freeze_config", f"{', '.join(map(str, frozen))}: what is frozen is not read")
    loss = str(conf.part("loss_fn").get("_target_", "")).rpartition(".")[2]
    if conf.part("loss_fn").get("fp32_upcast") is False:
        conf.leave("loss_fn.fp32_upcast", "false: logits that stay in bf16 are read as upcast to float32; an upper bound")
    conf.put("training.loss", conf.facts.tables["losses"].get(loss, "eager"))
    spreading.hardware(conf)


def _number(conf: Configuration, part: Mapping[str, Any], key: str) -> int | None:
    value = part.get(key.rpartition(".")[2])
    if value is None or str(value).lower() == "none":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**24:
        raise InvalidValue(f"{str(value)[:40]!r} is no number of such a thing", conf.where(key))
    return value


def _spread(conf: Configuration) -> None:
    part = conf.part("distributed")
    tensor, context, stages = (_number(conf, part, f"distributed.{name}_size") or 1 for name in ("tp", "cp", "pp"))
    experts, replicas = (_number(conf, part, f"distributed.{name}_size") or 1 for name in ("ep", "dp_replicate"))
    if conf.launch.gpus is None and conf.around.hardware is None:
        conf.launch.gpus = max(spreading.FEWEST, tensor * context * stages, experts, replicas)
        conf.assume("gpus", conf.launch.gpus, spreading.UNSAID)
    strategy = str(part.get("strategy", "fsdp2"))
    if strategy not in ("fsdp2", "ddp"):
        conf.leave("distributed.strategy", f"{strategy[:40]}: read as fsdp2")
        strategy = "fsdp2"
    if conf.gpus > 1:
        conf.put("parallelism.strategy", strategy)
        if replicas > 1:
            conf.put("parallelism.strategy", "hsdp")
            conf.put("parallelism.replicas", replicas)
    for ours, degree in (("tensor", tensor), ("context", context), ("pipeline", stages), ("expert", experts)):
        if degree > 1:
            conf.put(f"parallelism.{ours}", degree)
    said = conf.take("activation_checkpointing")
    recomputes = part.get("activation_checkpointing") if said is None else said
    conf.put("training.activation_checkpointing", "full" if recomputes else "none")
    if not recomputes:
        conf.assume("activation_checkpointing", False, "off in Automodel: activations of every layer are kept")


def _adapter(conf: Configuration) -> None:
    part = conf.part("peft")
    if not part:
        return
    targets, exclude = _layers(conf, part)
    found: dict[str, Any] = {"type": "lora", "rank": _number(conf, part, "peft.dim") or 8, "targets": targets, "dtype": "bf16"}
    if exclude:
        found["exclude"] = exclude
    if part.get("use_dora"):
        found["type"] = "dora"
    if part.get("dropout"):
        found["dropout"] = part["dropout"]
    conf.put("training.adapter", found)


def _layers(conf: Configuration, part: Mapping[str, Any]) -> tuple[str | list[str], list[str]]:
    """The layers that are adapted and those that are not (components/_peft/module_matcher.py): of names or patterns of paths; all
    linear layers, the output layer among them, where it is told so, or where only exclusions are."""
    names, left = (
        [given] if isinstance(given := part.get(f"{kind}_modules"), str) else [str(one) for one in given or []]
        for kind in ("target", "exclude")
    )
    exclude = [_last(one) for one in left]
    if part.get("match_all_linear") or "*" in names or (left and not names):
        targets: str | list[str] = EVERYTHING
    elif not names or {"*_proj", "*.proj"}.intersection(names):
        targets = ALL_LINEAR
    else:
        targets = [_last(one) for one in names]
    kind = roles.kind(conf.get("model"), conf.around.allow_files)
    if targets == EVERYTHING and kind.has_experts:
        conf.leave(
            "peft", "the output layer's adapter is not in the answer: a mixture's layers are read as all linear ones but it"
        )
        targets, exclude = ALL_LINEAR, []
    if isinstance(targets, str) and FUSED in kind.without_lora and FUSED not in exclude:
        conf.leave(
            "peft",
            f"{FUSED} of {kind.name} is read as without an adapter: the kernel takes its weight, and passes the adapter by",
        )
        targets, exclude = (MIXED, []) if kind.has_experts else (targets, [*exclude, FUSED])
    return targets, exclude


def _last(pattern: str) -> str:
    """The layer's own name in a pattern of paths."""
    return pattern.rpartition(".")[2].removeprefix("*")


def _batches(conf: Configuration) -> None:
    part = conf.part("step_scheduler")
    rows, whole = (_number(conf, part, f"step_scheduler.{name}_batch_size") or 1 for name in ("local", "global"))
    conf.put("training.micro_batch_size", rows)
    ranks = 1
    for name in ("tensor", "context", "pipeline"):
        ranks *= conf.get(f"parallelism.{name}") or 1
    conf.put("training.gradient_accumulation_steps", max(1, whole // (rows * max(1, conf.gpus // ranks))))
    packed = _number(conf, conf.part("packed_sequence"), "packed_sequence.packed_sequence_size")
    if packed:
        conf.put("training.sequence_length", packed)
    else:
        data = conf.part("dataset")
        length = data.get("seq_len") or data.get("seq_length") or data.get("max_seq_length")
        if "mock" in str(data.get("_target_", "")).lower() and isinstance(length, int) and length:
            conf.put("training.sequence_length", length)
            return
        trainer.length(conf, length if isinstance(length, int) and not isinstance(length, bool) else None, "dataset.seq_length")
