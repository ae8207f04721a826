"""Unsloth: `FastLanguageModel.from_pretrained`, `get_peft_model` and TRL's trainers, which it patches.

unsloth 2026.10: models/loader.py (4 bits unasked), models/rl.py (its own defaults of batches, accumulation and optimizer; the
length is the model's, whatever `max_length` says), models/_utils.py (checkpoints in the host's memory); unsloth_zoo's fused loss.
"""

from __future__ import annotations

from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration
from estimator.exchange.frameworks.huggingface import OBJECTIVES, objective


def read(conf: Configuration) -> None:
    """The job that a script's arguments are."""
    conf.put("model", conf.text("model_name"))
    spreading.spread(conf)
    whole = conf.yes("full_finetuning")
    sixteen = conf.has("load_in_16bit") and conf.yes("load_in_16bit")
    conf.skip("load_in_16bit", "load_in_4bit", "load_in_8bit")
    eight = conf.has("load_in_8bit") and conf.yes("load_in_8bit")
    adapts = conf.has("use_peft") or conf.has("lora_r")
    if adapts and not whole:
        _adapter(conf, 8 if eight else None if sixteen or not conf.yes("load_in_4bit") else 4)
    elif not whole:
        conf.assume("full_finetuning", True, "the script puts no adapter on the model: everything is trained")
    half = (
        "fp16"
        if conf.yes("fp16") or ((conf.text("dtype") or "").endswith("float16") and "bf" not in str(conf.given["dtype"]))
        else "bf16"
    )
    conf.skip("bf16", "fp16", "dtype")
    mixed = None if whole and not (conf.has("float32_mixed_precision") and conf.yes("float32_mixed_precision")) else half
    if whole and mixed is None:
        conf.assume(
            "precision",
            f"{'16' if half == 'fp16' else 'bf16'}-true",
            "Unsloth trains everything in the type of the weights, without autocast",
        )
    trainer.precision(conf, "fp32" if whole and mixed else half, mixed)
    trainer.run(conf)
    _lengths(conf)
    _checkpointing(conf)
    trainer.optimizer(conf)
    trainer.clipping(conf)
    conf.put("training.implementation", "fast-kernels")
    conf.put("training.loss", "fused")
    kind = conf.launch.program
    if kind in OBJECTIVES:
        objective(conf, kind)
        if kind == "grpo" and conf.has("fast_inference") and conf.yes("fast_inference"):
            conf.leave(
                "fast_inference", "vLLM shares the weights with the model that learns: they are counted twice; an upper bound"
            )
    elif kind not in ("sft", ""):
        conf.leave("trainer", f"{kind}: not modelled; answered as supervised fine-tuning")
    trainer.segments(conf, "Unsloth sets it as it is imported (unsloth_zoo/__init__.py)")
    spreading.hardware(conf)


def _adapter(conf: Configuration, bits: int | None) -> None:
    """LoRA, its matrices in float32, over 4 bits that are quantized twice, 8, or whole weights."""
    trainer.quantized(conf, bits, double=True)
    given = conf.take("lora_target_modules")
    targets = (
        "all-linear"
        if given in ("all-linear", ["all-linear"])
        else given
        if isinstance(given, str)
        else conf.names("lora_target_modules")
    )
    trainer.lora(conf, targets=targets, kept="fp32")
    if saved := conf.names("lora_modules_to_save"):
        conf.put("training.adapter.modules_to_save", saved)


def _lengths(conf: Configuration) -> None:
    """The model's length stands in place of the trainer's, unless that says `max_seq_length` itself."""
    tokens, rows = conf.whole("max_seq_length"), conf.get("training.micro_batch_size") or 1
    conf.skip("max_length")
    if conf.launch.program == "grpo":
        conf.put("training.sequence_length", tokens)
        conf.skip("max_prompt_length", "max_completion_length")
        return
    if conf.has("packing") and conf.yes("packing"):
        trainer.without_padding(conf, tokens or 2048, rows)
    else:
        trainer.length(conf, tokens, "max_seq_length")
    if str(conf.take("eval_strategy") or "no").lower() not in ("no", "false"):
        trainer.evaluation(conf, True, min(conf.whole("per_device_eval_batch_size") or rows, rows))


def _checkpointing(conf: Configuration) -> None:
    """Checkpoints, which wait in the host's memory where it says "unsloth", as it does unasked."""
    asked = conf.take("use_gradient_checkpointing")
    on = str(asked).lower() == "unsloth" or conf.yes("use_gradient_checkpointing")
    conf.skip("gradient_checkpointing", "gradient_checkpointing_kwargs")
    trainer.checkpointing(conf, on)
    if str(asked).lower() == "unsloth":
        conf.put("offload.activations", "cpu")
