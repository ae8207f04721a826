"""litgpt's YAML: LoRA, full fine-tuning and pre-training.

litgpt 0.5: finetune/lora.py and full.py (FSDP with activation checkpointing of each block on several GPUs, none of either on
one; the output layer in chunks of 128 tokens for LoRA), lora.py (adapters in the type of the weights).
"""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import InvalidValue, WillItFitError
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration
from estimator.specs.resolve import resolve

TARGETS = ("query", "key", "value", "projection", "mlp", "head")
SEVERAL_OPERATIONS = ("gelu_new", "gelu_fast", "gelu_python")
"""Forms of GELU that transformers makes of several operations, each of which keeps a tensor."""
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attention_dropout")
PRECISIONS = ("32-true", "bf16-true", "16-true", "bf16-mixed", "16-mixed")


def read(conf: Configuration) -> None:
    """The job that a file is."""
    path = conf.text("checkpoint_dir") or conf.text("initial_checkpoint_dir") or ""
    conf.put("model", conf.text("model_name") or re.sub(r"^(?:\./)?checkpoints/", "", path).rstrip("/"))
    devices = conf.take("devices")
    if str(devices) in ("auto", "-1"):
        conf.assume("devices", None, "auto: all GPUs that there are")
        devices = None
    else:
        devices = conf.whole("devices")
    if conf.launch.gpus is None and devices:
        conf.launch.gpus, conf.launch.nodes = devices, conf.whole("num_nodes")
    conf.skip("num_nodes")
    several = conf.gpus > 1
    if several:
        conf.put("parallelism.strategy", "fsdp1")
    conf.put("training.activation_checkpointing", "full" if several else "none")
    why = "on several GPUs litgpt shards by FSDP and recomputes each block" if several else "on one GPU litgpt recomputes nothing"
    conf.assume("activation_checkpointing", conf.get("training.activation_checkpointing"), why)
    precision = conf.text("precision") or "bf16-true"
    if precision not in PRECISIONS:
        raise InvalidValue(f"{precision[:40]!r} is none of {', '.join(PRECISIONS)}", conf.where("precision"))
    conf.put("training.precision", precision)
    if any(key.startswith("lora_") for key in conf.given):
        _adapter(conf, precision)
    storage = conf.text("quantize")
    if storage and storage in conf.facts.tables["quantize"] and conf.get("training.adapter"):
        conf.put("training.quantization", conf.facts.tables["quantize"][storage])
        conf.leave(
            "quantize",
            f"{storage}: litgpt quantizes the output layer, too, and has bitsandbytes' StableEmbedding in the place of the "
            "embedding, which no optimizer knows, but whose gradient is made and kept: neither is in the answer",
        )
    elif storage:
        conf.leave("quantize", f"{storage}: not modelled; the weights are taken for whole")
    _batches(conf)
    if several:
        _without_sync(conf)
    _optimizer(conf)
    _own_layers(conf)
    spreading.hardware(conf)


def _without_sync(conf: Configuration) -> None:
    """Gradients of all but the last micro-step are not reduced (`fabric.no_backward_sync`), so that each GPU keeps them whole.
    LoRA runs under FSDP2 (`ModelParallelStrategy`), everything else under FSDP1."""
    if conf.get("training.adapter"):
        conf.put("parallelism.strategy", "fsdp2")
    if (conf.get("training.gradient_accumulation_steps") or 1) == 1:
        return
    if not conf.get("training.adapter"):
        conf.put("parallelism.strategy", "fsdp2")
        conf.leave("devices", "FSDP1 that accumulates gradients without reducing them is not modelled: read as FSDP2 that does")
    conf.put("parallelism.gradient_sync", False)
    why = "litgpt accumulates without reducing (no_backward_sync): each GPU keeps the gradients whole until the last micro-step"
    conf.assume("gradient_sync", False, why)


def _own_layers(conf: Configuration) -> None:
    """litgpt's model in place of transformers' (litgpt/model.py): GELU is torch's single function, no layer has dropout, and the
    output layer is a matrix of its own unless `train.tie_embeddings` ties it (scripts/convert_hf_checkpoint.py copies it)."""
    try:
        spec = resolve(conf.get("model") or "", conf.around.allow_files).spec
        changed: dict[str, Any] = {}
        if getattr(spec, "hidden_act", None) in SEVERAL_OPERATIONS:
            changed["hidden_act"] = "gelu_pytorch_tanh"
        changed |= {name: 0.0 for name in DROPOUTS if getattr(spec, name, 0.0)}
        if getattr(spec, "tie_word_embeddings", False) and str(conf.part("train").get("tie_embeddings")).lower() != "true":
            changed["tie_word_embeddings"] = False
        if not changed:
            return
        given = {**spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), **changed}
        resolve(given, False)
    except WillItFitError:
        return
    conf.assume(
        "model", conf.get("model"), f"as litgpt builds it: {', '.join(f'{key} {value}' for key, value in changed.items())}"
    )
    conf.put("model", given)


def _adapter(conf: Configuration, precision: str) -> None:
    try:
        kind = resolve(conf.get("model"), conf.around.allow_files).spec.model_type
    except WillItFitError:
        kind = "other"
    names = conf.facts.tables["targets"].get(kind, conf.facts.tables["targets"]["other"])
    on = [name for name in TARGETS if conf.yes(f"lora_{name}")]
    targets: list[str] = []
    for name in on:
        targets += names[name] if isinstance(names[name], list) else [names[name]]
    kept = {"bf16": "bf16", "16": "fp16"}.get(precision.removesuffix("-true"), "fp32")
    trainer.lora(conf, targets=list(dict.fromkeys(targets)) or "all-linear", kept=kept)
    conf.put("training.loss", "chunked")
    conf.assume("loss", "chunked", "litgpt makes logits in chunks of 128 tokens for LoRA (lm_head_chunk_size)")


def _batches(conf: Configuration) -> None:
    given = conf.part("train")
    defaults = conf.facts.defaults

    def number(name: str) -> int | None:
        value = given.get(name)
        if value is None and (default := defaults.get(f"train.{name}")):
            conf.assume(f"train.{name}", default.value, default.why)
            value = default.value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**20:
            raise InvalidValue(f"{str(value)[:40]!r} is no number of such a thing", conf.where(f"train.{name}"))
        return value

    rows, whole = number("micro_batch_size") or 1, number("global_batch_size") or 16
    conf.put("training.micro_batch_size", rows)
    conf.put("training.gradient_accumulation_steps", max(1, whole // (rows * conf.gpus)))
    trainer.length(conf, number("max_seq_length"), "train.max_seq_length")
    if given.get("max_norm"):
        conf.put("training.gradient_clipping", True)


def _optimizer(conf: Configuration) -> None:
    given: Any = conf.take("optimizer")
    name = str(given.get("class_path", "AdamW") if isinstance(given, dict) else given).rpartition(".")[2].lower()
    known = conf.facts.tables["optimizers"].get(name)
    if known is None:
        conf.leave("optimizer", f"{name}: a job has no such optimizer; AdamW is taken")
    conf.put("training.optimizer", known or "adamw_torch")
