"""torchtune's recipes: `tune run RECIPE --config FILE`.

torchtune 0.6: recipes/{full,lora}_finetune_{single_device,distributed}.py; adapters are in the recipe's type; the loss projects
in chunks (modules/loss/cross_entropy_loss.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from estimator.contract.errors import InvalidValue, NotModelled
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration

_BUILDER = re.compile(r"(?:(?P<method>lora|qlora|dora|qdora|qat_lora)_)?(?P<name>\w+)")
_SIZED = re.compile(r"([a-z]+)(\d+)?(?:_(\d+))?_(\d+(?:_\d+)?[bm])(?:_.*)?")
MLP = ["gate_proj", "up_proj", "down_proj"]
OTHERS = ("tasks", "max_new_tokens", "prompt")
"""Keys of recipes that train nothing: of an evaluation, or a generation."""


def read(conf: Configuration) -> None:
    """The job that a recipe's file is."""
    model = conf.part("model")
    builder = _BUILDER.fullmatch(str(model.get("_component_", "")).rpartition(".")[2])
    if builder is None:
        raise InvalidValue("its _component_ names no builder of a model", conf.where("model"))
    conf.put("model", _model(conf, builder["name"]))
    if (other := next((key for key in OTHERS if conf.has(key)), None)) is not None:
        raise NotModelled("it is of a recipe that evaluates or generates, and trains nothing", conf.where(other))
    if isinstance(older := conf.take("fsdp"), Mapping) and not conf.has("fsdp_cpu_offload"):
        conf.given["fsdp_cpu_offload"] = older.get("cpu_offload")
    if conf.yes("fsdp_cpu_offload") and conf.launch.gpus is None and conf.around.hardware is None:
        conf.launch.gpus = spreading.FEWEST
        conf.assume("gpus", spreading.FEWEST, "a recipe that shards does not say over how many")
    several = conf.gpus > 1
    if several:
        conf.put("parallelism.strategy", "fsdp2")
    spreading.degrees(conf, tensor="tensor_parallel_dim", context="context_parallel_dim")
    if several and (replicas := conf.whole("data_parallel_replicate_dim") or 1) > 1:
        conf.put("parallelism.strategy", "hsdp")
        conf.put("parallelism.replicas", replicas)
    if several and conf.has("fsdp_reshard_after_forward") and not conf.yes("fsdp_reshard_after_forward"):
        conf.put("parallelism.reshard_after_forward", False)
    conf.skip("fsdp_reshard_after_forward")
    if conf.yes("fsdp_cpu_offload"):
        for part in ("parameters", "gradients", "optimizer"):
            conf.put(f"offload.{part}", "cpu")
    kept = trainer.dtype(conf, "dtype")
    conf.put("training.precision", {"bf16": "bf16-true", "fp16": "16-true", "fp32": "32-true"}[kept])
    if builder["method"]:
        _adapter(conf, model, builder["method"], kept)
    _batches(conf)
    conf.put("training.activation_checkpointing", "full" if conf.yes("enable_activation_checkpointing") else "none")
    if conf.yes("enable_activation_offloading"):
        conf.put("offload.activations", "cpu")
    given = conf.part("optimizer")
    name = str(given.get("_component_", "torch.optim.AdamW")).rpartition(".")[2].lower()
    found = conf.facts.tables["optimizers"].get(name)
    if found is None:
        conf.leave("optimizer", f"{name}: a job has no such optimizer; AdamW is taken")
    conf.put(
        "training.optimizer", "adamw_torch_fused" if found == "adamw_torch" and given.get("fused") else found or "adamw_torch"
    )
    if conf.yes("optimizer_in_bwd"):
        conf.put("training.optimizer_in_backward", True)
    loss = str(conf.part("loss").get("_component_", "")).rpartition(".")[2]
    if loss in ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss"):
        conf.put("training.loss", "chunked")
    if conf.number("clip_grad_norm"):
        conf.put("training.gradient_clipping", True)
    if "dpo" in loss.lower():
        conf.put("training.objective", {"type": "dpo"})
    trainer.segments(conf, "torchtune sets it as it is imported (__init__.py)")
    spreading.hardware(conf)


def _model(conf: Configuration, name: str) -> str:
    """A builder's name as a model's: llama3_1_8b is llama-3.1-8b."""
    builders = [conf.facts.tables["models"], *conf.facts.tables["builders"].values()]
    for one in (name, f"{name}_instruct", re.sub(r"_base$", "_instruct", name), re.sub(r"_(?:base|instruct)$", "", name)):
        if known := next((names[one] for names in builders if one in names), None):
            conf.assume("model", known, f"the builder {name}")
            return str(known)
    if match := _SIZED.fullmatch(name):
        family, major, minor, size = match.groups()
        version = f"-{major}.{minor}" if major and minor else f"-{major}" if major else ""
        found = f"{family}{version}-{size.replace('_', '.')}"
        if family in ("qwen", "gemma"):
            found = f"{family}{version.removeprefix('-')}-{size.replace('_', '.')}"
        conf.assume("model", found, f"the builder {name}")
        return found
    return name.replace("_", "-")


def _adapter(conf: Configuration, model: Mapping[str, object], method: str, kept: str) -> None:
    names, listed = conf.facts.tables["targets"], model.get("lora_attn_modules")
    targets = [names.get(str(one), str(one)) for one in listed] if isinstance(listed, list) else ["q_proj", "v_proj"]
    if model.get("apply_lora_to_mlp"):
        targets += MLP
    if model.get("apply_lora_to_output"):
        targets.append("lm_head")
    found: dict[str, object] = {"type": "dora" if "dora" in method or model.get("use_dora") else "lora"}
    found |= {"rank": model.get("lora_rank", 8), "targets": targets, "dtype": kept}
    if model.get("lora_dropout"):
        found["dropout"] = model["lora_dropout"]
    conf.put("training.adapter", found)
    if (method.startswith("q") and method != "qat_lora") or model.get("quantize_base"):
        conf.put("training.quantization", "nf4-double")


def _batches(conf: Configuration) -> None:
    length = conf.part("tokenizer").get("max_seq_len")
    packed = bool(conf.part("dataset").get("packed"))
    if length is not None and (isinstance(length, bool) or not isinstance(length, int)):
        raise InvalidValue(f"{str(length)[:40]!r} is no number of tokens", conf.where("tokenizer.max_seq_len"))
    rows = conf.whole("batch_size") or 2
    conf.put("training.micro_batch_size", rows)
    conf.put("training.gradient_accumulation_steps", conf.whole("gradient_accumulation_steps") or 1)
    if packed and length:
        conf.put("training.sequence_length", length)
        if rows == 1:
            conf.put("training.attention_mask", "packed")
        else:
            conf.leave("dataset.packed", f"{rows} rows of documents with a mask of their own: read as rows without one")
    else:
        trainer.length(conf, length, "tokenizer.max_seq_len")
