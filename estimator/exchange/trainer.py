"""What transformers' Trainer makes of settings, and with it axolotl, LLaMA-Factory, TRL and ms-swift, which are built on it.

transformers/training_args.py and trainer.py of 5.23, peft/mapping_func.py of 0.21, accelerate/accelerator.py of 1.15
(`prepare_model`: trainable parameters become float32 under FSDP with mixed precision).
"""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import InvalidValue, NotModelled, WillItFitError
from estimator.contract.job.optimizer import ALIASES, IMPLEMENTATIONS
from estimator.exchange.configuration import Configuration, framework
from estimator.specs.resolve import resolve

ALIKE = {"awq-int4": "gptq-int4"}
"""Formats of checkpoints whose layers hold the same bytes as another's: 4 bits, with a scale and a zero for each group."""
BENEATH = ("nf4", "fp4", "int8", "gptq", "hqq")
"""Formats that stay beneath an adapter."""
SEGMENTS = "PYTORCH_ALLOC_CONF"
"""The variable that tells torch's allocator to let segments grow."""
TYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32", "fp32": "fp32"}
ATTENTIONS = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash_attention_2": "flash_attention_2",
    "flash_attention_3": "flash_attention_3",
    "flash_attn": "flash_attention_2",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn": "flash_attention_2",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}
"""What a job calls each way to run attention."""


def switched_off(conf: Configuration) -> None:
    """HfArgumentParser's `--no_X` (transformers/hf_argparser.py), which it makes for each switch that is on by default."""
    for key in [key for key in conf.given if key.startswith("no_")]:
        name = key.removeprefix("no_")
        default = conf.facts.defaults.get(name)
        if default is not None and default.value is True and conf.yes(key):
            conf.given[name] = False
            conf.lines.setdefault(name, conf.lines.get(key, 0))


def towers(conf: Configuration, language: str, *others: str) -> None:
    """Switches that freeze the parts of a model that sees: what differs from a tower that is frozen and a language model that is
    not is named."""
    conf.skip(language, *others)
    for key in others:
        if conf.has(key) and not conf.yes(key):
            conf.leave(
                key, "false: the file says nothing of images, and the answer is of texts, in which this part learns nothing"
            )
    if conf.has(language) and conf.yes(language):
        conf.leave(language, "true: read as if the language model learned, too; an upper bound")


def dtype(conf: Configuration, key: str, auto: str = "bf16") -> str:
    """A type of weights by torch's name; `auto` is what the checkpoint has."""
    given = (conf.text(key) or "auto").removeprefix("torch.").lower()
    if given in ("auto", "none"):
        conf.assume(key, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[auto], "the type of the checkpoint")
        return auto
    if given not in TYPES:
        raise InvalidValue(f"{given[:40]!r} is no type of weights here; write {', '.join(TYPES)}", conf.where(key))
    return TYPES[given]


def half(conf: Configuration, *, unsaid: str | None = None) -> str | None:
    """What mixed precision computes in: bf16, fp16, or nothing where both are off."""
    if conf.yes("fp16"):
        conf.skip("bf16")
        return "fp16"
    given = conf.take("bf16")
    if given == "auto":
        conf.assume("bf16", True, "auto: on where the GPU has bf16, as all since Ampere")
        return "bf16"
    if given is None:
        return unsaid
    return "bf16" if conf.yes("bf16") else None


def precision(conf: Configuration, weights: str, mixed: str | None, *, trained: str | None = None) -> None:
    """The recipe behind "bf16: true": what weights, gradients and states are held in, and what products run in.

    `weights`: the type that the model is loaded in. `trained`: the type that what is trained is cast to, where a framework does.
    """
    strategy = conf.get("parallelism.strategy") or "none"
    adapter = conf.get("training.adapter") is not None
    if adapter:
        _stored(conf)
    named = {"bf16": "bf16", "fp16": "16"}
    if strategy.startswith("zero"):
        found = f"deepspeed-{mixed or weights}" if (mixed or weights) != "fp32" else "32-true"
        conf.put("training.precision", found)
        if mixed:
            conf.assume(
                "precision", found, f"DeepSpeed holds weights and gradients in {mixed}, and a float32 copy for the optimizer"
            )
        return
    sharded = strategy.startswith(("fsdp", "hsdp"))
    if mixed is None:
        kept = trained if trained and not adapter else weights
        conf.put("training.precision", f"{named[kept]}-true" if kept in named else "32-true")
        return
    whole = not adapter and (sharded or trained == "fp32")
    if weights == "fp32" or whole:
        conf.put("training.precision", f"{named[mixed]}-mixed")
        if sharded:
            conf.put("training.autocast", True)
        if whole and weights != "fp32":
            who = (
                "Accelerate makes what FSDP trains float32"
                if sharded
                else f"{conf.facts.framework} casts what is trained to float32"
            )
            conf.assume("precision", f"{named[mixed]}-mixed", f"{who}: weights, gradients and states take 4 bytes each")
        return
    conf.put("training.precision", f"{named[weights]}-true")
    conf.put("training.autocast", True)
    held = "the frozen weights" if adapter else "weights, gradients and optimizer states"
    conf.assume(
        "precision", f"{named[weights]}-true", f"{held} keep the type that the model is loaded in; autocast computes in {mixed}"
    )


def _stored(conf: Configuration) -> None:
    """A checkpoint that is quantized stays so beneath an adapter, whether the file says it or not."""
    if conf.get("training.quantization") is not None:
        return
    try:
        stored = resolve(conf.get("model") or "", conf.around.allow_files).stored
    except WillItFitError:
        return
    if stored is None or not stored.format or not stored.named or stored.gguf:
        return
    held = ALIKE.get(stored.format, stored.format)
    if held.startswith(BENEATH):
        conf.put("training.quantization", held)
        conf.assume("quantization", held, f"the checkpoint is in {stored.format}")
    else:
        conf.leave("model", f"its checkpoint is in {stored.format}: read as if it were made whole for training; an upper bound")


def optimizer(conf: Configuration, key: str = "optim") -> None:
    """The optimizer by the Trainer's name, or a job's own."""
    given = (conf.text(key) or "adamw_torch_fused").lower()
    name = conf.facts.tables.get("optimizers", {}).get(given, given)
    if name in ALIASES or name in IMPLEMENTATIONS:
        conf.put("training.optimizer", name)
        return
    conf.put("training.optimizer", "adamw_torch_fused")
    conf.leave(key, f"{given}: a job has no such optimizer; AdamW is taken, which keeps 8 bytes of states for each parameter")


def attention(conf: Configuration, key: str) -> None:
    """How attention runs; without a word transformers takes torch's."""
    given = conf.text(key)
    if given is None or given == "auto":
        return
    if given.lower() in ATTENTIONS:
        conf.put("training.attention", ATTENTIONS[given.lower()])
    else:
        conf.leave(key, f"{given}: a job has no such attention; sdpa is taken")


def checkpointing(conf: Configuration, on: bool, reentrant: bool = False) -> None:
    """Whether every layer is recomputed, and by which of torch's two ways."""
    conf.put("training.activation_checkpointing", "full" if on else "none")
    if on and reentrant:
        conf.put("training.reentrant_checkpointing", True)


def reentrant(conf: Configuration, key: str = "gradient_checkpointing_kwargs") -> bool | None:
    """What `gradient_checkpointing_kwargs` says of re-entrance."""
    given = conf.take(key)
    return bool(given.get("use_reentrant")) if isinstance(given, dict) and given.get("use_reentrant") is not None else None


def clipping(conf: Configuration, key: str = "max_grad_norm") -> None:
    """Gradients are clipped where the norm is not 0."""
    if conf.number(key):
        conf.put("training.gradient_clipping", True)


def lora(conf: Configuration, *, targets: Any, kept: str, prefix: str = "lora_") -> None:
    """A LoRA adapter, its matrices held in `kept`; `targets` None is PEFT's table."""
    found: dict[str, Any] = {"type": "dora" if conf.has("use_dora") and conf.yes("use_dora") else "lora"}
    found["rank"] = conf.whole(f"{prefix}r") if f"{prefix}r" in conf.given or f"{prefix}r" in conf.facts.defaults else None
    found["rank"] = found["rank"] or conf.whole(f"{prefix}rank") or 8
    if dropout := conf.number(f"{prefix}dropout"):
        found["dropout"] = dropout
    found |= {"targets": anywhere(targets, _LAYERS) or pefts_targets(conf), "dtype": kept}
    conf.skip(f"{prefix}alpha", "use_rslora", "loraplus_lr_ratio")
    conf.put("training.adapter", found)


def anywhere(targets: Any, before: re.Pattern[str]) -> Any:
    """Targets whose pattern begins with the way to every layer, as one that begins anywhere: all layers are alike."""
    return before.sub(r".*\.", targets, count=1) if isinstance(targets, str) else targets


_EVERY = r"layers\\?\.(?:\[\\d\]|\[0-9\]|\\d)[+*]\\?\."
_LAYERS = re.compile(rf"^\^?(?:model\\?\.)?{_EVERY}")
OF_LANGUAGE = re.compile(rf"^\^?(?:model\\?\.)?language_model\\?\.(?:model\\?\.)?{_EVERY}")
"""How patterns begin of all layers of a model, and of the language model of one that sees."""


def pefts_targets(conf: Configuration) -> list[str] | str:
    """The layers that PEFT adapts where nothing is said: a table by the kind of model."""
    try:
        kind = resolve(conf.get("model") or "", conf.around.allow_files).spec.model_type
    except WillItFitError:
        kind = ""
    table = framework("shared").tables["lora_targets"]
    found: list[str] | str = table.get(kind, table["other"])
    conf.assume("target_modules", found, "PEFT's own for this kind of model")
    return found


def run(conf: Configuration) -> None:
    """Batches, and what of the machine a run's settings say."""
    conf.put("training.micro_batch_size", conf.whole("per_device_train_batch_size"))
    conf.put("training.gradient_accumulation_steps", conf.whole("gradient_accumulation_steps") or 1)
    workers = conf.whole("dataloader_num_workers")
    if workers:
        conf.put("host.data_loader_workers", workers)
    tf32(conf)


def tf32(conf: Configuration) -> None:
    """float32 products in TF32, where products are of float32 at all."""
    given = conf.take("tf32")
    if given not in (None, "auto") and conf.yes("tf32") and conf.get("training.precision") == "32-true":
        conf.put("training.tf32", True)


def evaluation(conf: Configuration, on: bool, batch: int | None, length: int | None = None) -> None:
    """Evaluation between steps, of its own batch."""
    if on:
        conf.put("training.evaluation", {"micro_batch_size": batch or 8, **({"sequence_length": length} if length else {})})


def length(conf: Configuration, tokens: int | None, key: str) -> None:
    """The longest sample: files say at most where it is cut."""
    if tokens:
        conf.put("training.sequence_length", tokens)
        conf.assume("lengths", tokens, f"the data are not read: its longest sample is taken for as long as {key} lets it be")
    else:
        why = (
            f"{key} sets no limit: the length is that of the longest sample, which the file does not say; as a job has it unsaid"
        )
        conf.assume("lengths", None, why)


def without_padding(conf: Configuration, tokens: int, rows: int, why: str = "without padding the batch is one row of") -> None:
    """A micro batch whose samples stand one after another in a single row, which is full.

    Kernels of flash attention tell them apart. Of a model for which those are not modelled eager's scores would be counted, which
    are as many times as large as the row has samples, and which no such kernel keeps.
    """
    if rows > 1 and (kind := _eager_only(conf)):
        raise NotModelled(
            f"{kind} is modelled in eager attention only, whose scores grow with the square of a row: without padding "
            f"{rows} × {tokens} tokens are one, in kernels that are not modelled; write one sample for each micro batch, or "
            "leave the padding in",
            "training.attention",
        )
    conf.put("training.attention_mask", "packed")
    conf.put("training.sequence_length", tokens * rows)
    conf.put("training.micro_batch_size", 1)
    if rows > 1:
        conf.assume("micro_batch_size", 1, f"{why} {rows} × {tokens} tokens")


def _eager_only(conf: Configuration) -> str:
    """The kind of the model where eager is the one attention that is modelled of it; "" of any other, and of one not known."""
    try:
        spec = resolve(conf.get("model") or "", conf.around.allow_files).spec
    except WillItFitError:
        return ""
    inner = getattr(spec, "alone", spec)
    return inner.model_type if inner.runs and inner.attentions == ("eager",) else ""


def liger(conf: Configuration, on: bool, *, fused: bool = True) -> None:
    """Liger's kernels, and its loss fused with the output layer."""
    if on:
        conf.put("training.implementation", "liger")
        conf.put("training.loss", "fused" if fused else "eager")


def quantized(conf: Configuration, bits: int | None, double: bool, kind: str = "nf4", compute: str | None = None) -> None:
    """bitsandbytes' 4 or 8 bits."""
    if bits == 4:
        conf.put("training.quantization", f"{kind}-double" if double and kind == "nf4" else kind)
        if compute:
            conf.put("training.quantization_compute", compute)
    elif bits == 8:
        conf.put("training.quantization", "int8")


def segments(conf: Configuration, why: str, command: str = "", fewest: int = 1) -> None:
    """Segments that grow, where a framework tells torch's allocator to have them unless the environment says something.
    `command`: what it must be started by for that, as a file alone is; `fewest`: on how many GPUs at least."""
    started = conf.launch.program.partition(" ")[0]
    if (before := conf.default(SEGMENTS)) is not None:
        conf.assume(SEGMENTS, before.value, before.why)
    elif conf.launch.expandable is None and conf.gpus >= fewest and (not command or started in ("", command)):
        conf.put("training.expandable_segments", True)
        conf.assume(SEGMENTS, "expandable_segments:True", why)
