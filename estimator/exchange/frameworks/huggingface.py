"""TRL's YAML and command lines, and those of scripts around transformers' Trainer.

TRL 1.16: trainer/sft_trainer.py (its own loss in chunks instead of the full logits; QLoRA's adapters in bf16), model_config.py;
transformers 5.23: training_args.py.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from estimator.exchange import roles, rollouts, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration

KINDS = ("orpo", "dpo", "kto", "grpo", "reward", "sft", "gkd", "cpo", "rloo", "ppo")
OBJECTIVES = ("orpo", "dpo", "kto", "grpo", "reward")


def read(conf: Configuration) -> None:
    """The job that arguments are."""
    trl = conf.facts.framework == "trl"
    trainer.switched_off(conf)
    conf.put("model", conf.text("model_name_or_path"))
    mixed = spreading.spread(conf)
    kind = _kind(conf) if trl else "sft"
    _example(conf)
    weights = _weights(conf)
    half = trainer.half(conf, unsaid=mixed) if mixed in (None, "no") or conf.has("bf16") or conf.has("fp16") else mixed
    bits = 4 if conf.yes("load_in_4bit") else 8 if conf.yes("load_in_8bit") else None
    adapts = conf.yes("use_peft") if conf.has("use_peft") else any(conf.has(key) for key in ("lora_r", "lora_target_modules"))
    zero3 = conf.get("parallelism.strategy") == "zero3"
    if adapts:
        trainer.quantized(conf, bits, conf.yes("use_bnb_nested_quant"), conf.text("bnb_4bit_quant_type") or "nf4")
        qlora = trl and bits is not None
        kept = "bf16" if qlora or zero3 else "fp32"
        given = conf.names("lora_target_modules")
        trainer.lora(conf, targets="all-linear" if given in (["all-linear"], ["all"]) else given, kept=kept)
        if saved := conf.names("lora_modules_to_save"):
            conf.put("training.adapter.modules_to_save", saved)
        why = (
            "TRL casts QLoRA's adapters"
            if qlora
            else "under ZeRO-3 they stay so"
            if zero3
            else "PEFT holds adapters so (autocast_adapter_dtype)"
        )
        conf.assume("adapter dtype", {"bf16": "bfloat16", "fp32": "float32"}[kept], why)
    elif bits:
        conf.leave(f"load_in_{bits}bit", "without an adapter nothing could be trained; the weights are taken for whole")
    _prepared(conf)
    trainer.precision(conf, weights, half)
    trainer.run(conf)
    _lengths(conf, trl, kind)
    on = conf.yes("gradient_checkpointing") or conf.get("training.activation_checkpointing") == "full"
    said = trainer.reentrant(conf)
    forced = trl and zero3 and adapts
    trainer.checkpointing(conf, on, forced or bool(said))
    if on and forced and not said:
        conf.assume("use_reentrant", True, "TRL checkpoints in torch's older way with PEFT under ZeRO-3")
    if conf.has("activation_offloading") and conf.yes("activation_offloading"):
        conf.put("offload.activations", "cpu")
    trainer.optimizer(conf)
    trainer.clipping(conf)
    flash = conf.has("use_flash_attn") and conf.yes("use_flash_attn")
    if flash and not conf.has("attn_implementation"):
        conf.put("training.attention", "flash_attention_2")
    trainer.attention(conf, "attn_implementation")
    liger = conf.yes("use_liger_kernel") or conf.yes("use_liger")
    trainer.liger(conf, liger)
    whole = conf.default("loss_type") if kind == "sft" and not liger else None
    if whole is not None:
        conf.assume("loss_type", whole.value, whole.why)
    elif trl and kind in ("sft", "dpo", "grpo") and not liger:
        conf.put("training.loss", "fused")
        conf.assume("loss_type", "nll", "TRL makes the loss in chunks, without the full logits (add_fused_lm_head)")
    if kind in OBJECTIVES:
        objective(conf, kind)
    spreading.hardware(conf)
    roles.on_parameters(conf)


def _example(conf: Configuration) -> None:
    """The head, and the length, of one of transformers' examples."""
    script, tables = PurePath(conf.launch.program.partition(" ")[0]).stem.removesuffix("_no_trainer"), conf.facts.tables
    if head := tables.get("heads", {}).get(script):
        conf.put("training.head", head)
    elif head := tables.get("alike", {}).get(script):
        conf.put("training.head", head)
        conf.leave(
            script, "its output layer, a few numbers for each token, is read as that of a classification of whole sequences"
        )
    tokens = tables.get("lengths", {}).get(script)
    if tokens and not conf.has("max_length"):
        conf.given["max_length"] = tokens
        conf.assume("max_length", tokens, f"{script}'s own")


def _prepared(conf: Configuration) -> None:
    """What a script does with the model: `prepare_model_for_kbit_training`, the type that 4-bit layers compute in, its head."""
    conf.skip("prepared_for_kbit_training", "bnb_4bit_compute_dtype")
    if conf.has("prepared_for_kbit_training") and conf.get("training.quantization"):
        conf.put("training.upcast_unquantized", "all")
        conf.assume("upcast", "float32", "prepare_model_for_kbit_training makes what is not quantized float32, and checkpoints")
    compute = (conf.text("bnb_4bit_compute_dtype") or "").removeprefix("torch.").lower()
    if (conf.get("training.quantization") or "").startswith(("nf4", "fp4")) and compute in trainer.TYPES:
        conf.put("training.quantization_compute", trainer.TYPES[compute])
    if conf.has("head"):
        conf.put("training.head", conf.text("head"))
        conf.put("training.labels", conf.whole("num_labels") or 2)


def _weights(conf: Configuration) -> str:
    """The type that the model is loaded in. What FSDP flattens is of one type, so that beside 4-bit weights it is that of their
    storage (`bnb_4bit_quant_storage`), as PEFT's examples/sft/utils.py loads it, too."""
    storage = str(conf.take("bnb_4bit_quant_storage") or "").removeprefix("torch.")
    sharded = (conf.get("parallelism.strategy") or "").startswith(("fsdp", "zero3"))
    if not conf.has("dtype") and sharded and storage in trainer.TYPES:
        conf.assume("dtype", storage, "that of the 4-bit weights' storage, as what is sharded beside them must have")
        return trainer.TYPES[storage]
    scaled = conf.text("dtype") == "auto" and conf.has("fp16") and conf.yes("fp16")
    if scaled and not any(conf.has(key) and conf.yes(key) for key in ("use_peft", "load_in_4bit", "load_in_8bit")):
        conf.assume("dtype", "float32", "the scaler of fp16 trains no weights but those in float32")
        return "fp32"
    return trainer.dtype(conf, "dtype")


def _kind(conf: Configuration) -> str:
    """Which trainer it is: by the script, the subcommand, the file's name, or keys that only one has."""
    program = PurePath(conf.launch.program).name.lower()
    for said in (program, conf.around.name.lower()):
        for kind in KINDS:
            if re.search(rf"(?:^|[^a-z]){kind}(?:[^a-z]|$)", said):
                if kind not in (*OBJECTIVES, "sft"):
                    conf.leave("trainer", f"{kind}: not modelled; answered as supervised fine-tuning")
                return kind
    if conf.has("num_generations") or conf.has("use_vllm"):
        return "grpo"
    if conf.has("max_prompt_length") or conf.has("beta") or conf.has("rpo_alpha"):
        conf.assume("trainer", "dpo", "the file has keys of preferences, and its name says no other trainer")
        return "dpo"
    return "sft"


def _lengths(conf: Configuration, trl: bool, kind: str) -> None:
    packed = conf.has("packing") and conf.yes("packing")
    free = conf.has("padding_free") and conf.yes("padding_free")
    if kind == "grpo":
        rollouts.lengths(conf, "TRL", conf.whole("max_prompt_length"), conf.whole("max_completion_length"))
        conf.skip("max_length")
        return
    tokens, rows = conf.whole("max_length"), conf.get("training.micro_batch_size") or 1
    if tokens and (packed or free) and kind == "sft":
        if not packed:
            trainer.length(conf, tokens, "max_length")
        trainer.without_padding(conf, tokens, rows)
    else:
        trainer.length(conf, tokens, "max_length" if trl else "the file")
    asked = str(conf.take("eval_strategy") or "no").lower()
    batch = conf.whole("per_device_eval_batch_size")
    trainer.evaluation(conf, asked not in ("no", "false"), batch, tokens if packed else None)


def objective(conf: Configuration, kind: str) -> None:
    """A loss over several models or answers."""
    found: dict[str, object] = {"type": kind}
    if kind in ("dpo", "kto") and conf.has("precompute_ref_log_probs") and conf.yes("precompute_ref_log_probs"):
        found["reference"] = "precomputed"
    if kind == "grpo":
        found["prompt_length"] = conf.whole("max_prompt_length") or 512
        found |= rollouts.reference(conf, conf.number("beta"))
        if not conf.yes("use_vllm"):
            found["generation"] = {"engine": "transformers"}
        else:
            found |= rollouts.engine(
                conf.text("vllm_mode") or "colocate",
                conf.number("vllm_gpu_memory_utilization") or 0.3,
                sleeps=conf.has("vllm_enable_sleep_mode") and conf.yes("vllm_enable_sleep_mode"),
                tensor=conf.whole("vllm_tensor_parallel_size"),
            )
    conf.put("training.objective", found)
