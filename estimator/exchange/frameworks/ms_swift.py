"""ms-swift's command lines and argument files: `swift sft`, `pt` and `rlhf`.

ms-swift 4.6: arguments/base_args, arguments/sft_args.py (accumulation to 16 sequences a step), trainers/arguments.py, tuners.
"""

from __future__ import annotations

from typing import Any

from estimator.exchange import rollouts, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration
from estimator.exchange.frameworks import ms_swift_serving

SEQUENCES = 16
"""Sequences of a step where accumulation is not said."""
BINARY = {"default", "last_round", "all", "base", "ignore_empty_think", "ignore_think_prefix"}
"""Ways to weigh tokens that are on or off alone (loss_scale/mapping.py)."""
TUNERS = ("lora", "full", "adalora", "vera", "boft", "ia3", "longlora")


def read(conf: Configuration) -> None:
    """The job that arguments are."""
    if conf.launch.program.rpartition(" ")[2] in ms_swift_serving.COMMANDS:
        ms_swift_serving.read(conf)
        return
    trainer.switched_off(conf)
    conf.put("model", conf.text("model"))
    spreading.spread(conf)
    _in_one_process(conf)
    weights = trainer.dtype(conf, "torch_dtype")
    bits = conf.whole("quant_bits")
    tuner = (conf.text("tuner_type") or "lora").lower()
    zero3 = conf.get("parallelism.strategy") == "zero3"
    if tuner != "full":
        method = conf.text("quant_method") or "bnb"
        if bits in (4, 8) and method == "bnb":
            trainer.quantized(conf, bits, conf.yes("bnb_4bit_use_double_quant"), conf.text("bnb_4bit_quant_type") or "nf4")
        elif bits and f"{method}-int{bits}" in ("hqq-int8", "hqq-int4", "hqq-int3", "hqq-int2", "eetq-int8"):
            conf.put("training.quantization", f"{method}-int{bits}")
        elif bits or conf.has("quant_method"):
            conf.leave(
                "quant_method", f"{method}{f' in {bits} bits' if bits else ''}: not modelled; the weights are taken for whole"
            )
        given: Any = conf.text("target_regex") if conf.has("target_regex") else conf.names("target_modules")
        conf.skip("target_modules")
        targets = "all-linear" if given in ([], ["all-linear"], ["ALL"], ["auto"]) else given
        held = conf.text("lora_dtype")
        kept = trainer.TYPES.get(str(held), "bf16" if zero3 else "fp32") if held else "bf16" if zero3 else "fp32"
        trainer.lora(conf, targets=targets, kept=kept)
        if tuner in ("adalora", "vera"):
            conf.put("training.adapter.type", tuner)
        elif tuner not in TUNERS or tuner == "longlora":
            conf.leave("tuner_type", f"{tuner}: not modelled; read as lora")
        elif tuner in ("boft", "ia3"):
            conf.put("training.adapter", {"type": tuner, "targets": targets, "dtype": kept})
        if saved := conf.names("modules_to_save"):
            conf.put("training.adapter.modules_to_save", saved)
        full = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
        conf.assume(
            "adapter dtype", full[kept], "as lora_dtype says" if held else "what PEFT makes of it (autocast_adapter_dtype)"
        )
    said = conf.has("bf16") or conf.has("fp16")
    trainer.precision(conf, weights, trainer.half(conf) if said else None if weights == "fp32" else weights)
    _batches(conf)
    on = conf.yes("gradient_checkpointing")
    trainer.checkpointing(conf, on, bool(trainer.reentrant(conf)))
    _optimizer(conf)
    trainer.clipping(conf)
    trainer.attention(conf, "attn_impl")
    _liger(conf)
    if layers := conf.whole("lisa_activated_layers"):
        conf.put("training.trainable", {"lisa": layers})
    task = (conf.text("task_type") or "causal_lm").lower()
    if task == "seq_cls":
        conf.put("training.head", "sequence-classification")
        conf.put("training.labels", conf.whole("num_labels") or 2)
    elif task != "causal_lm":
        conf.leave("task_type", f"{task}: read as fine-tuning of the language model, whose logits it may not make")
    _objective(conf)
    trainer.towers(conf, "freeze_llm", "freeze_vit", "freeze_aligner")
    spreading.hardware(conf)


def _liger(conf: Configuration) -> None:
    """Liger's kernels. Its loss gives way to full logits where tokens have weights of their own, or each its own loss
    (trainers/seq2seq_trainer.py, `compute_loss`)."""
    weighs = not set((conf.text("loss_scale") or "default").split("+")) <= BINARY
    switches = ("enable_dft_loss", "enable_channel_loss")
    other = [name for name in switches if conf.has(name) and conf.yes(name)]
    other += ["loss_scale"] * weighs + ["label_smoothing_factor"] * bool(conf.number("label_smoothing_factor"))
    other += ["sequence_parallel_size"] * ((conf.whole("sequence_parallel_size") or 1) > 1)
    on = conf.yes("use_liger_kernel")
    trainer.liger(conf, on, fused=not other)
    if on and other:
        conf.assume("use_liger_kernel", True, f"with {other[0]} Liger's loss takes no effect: the full logits are made")


def _in_one_process(conf: Configuration) -> None:
    """Without NPROC_PER_NODE one process has all GPUs, over which transformers spreads the layers (`device_map`)."""
    if conf.launch.processes or conf.launch.gpus in (None, 1) or conf.get("parallelism.strategy") != "ddp":
        return
    conf.put("parallelism.strategy", "fsdp2")
    conf.leave(
        "device_map",
        f"without NPROC_PER_NODE one process spreads the layers over {conf.gpus} GPUs, one of which works at a time: read as "
        "shards of every layer, of the same weights in all; each GPU then keeps the activations of every layer: an upper bound, "
        "and too fast",
    )


def _batches(conf: Configuration) -> None:
    rows, tokens = conf.whole("per_device_train_batch_size") or 1, conf.whole("max_length")
    if tokens and (parts := conf.whole("sequence_parallel_size") or 1) > 1:
        tokens = -(-tokens // parts)
        conf.leave("sequence_parallel_size", f"{parts}: read as each GPU's part of a sequence; what they exchange is not counted")
    steps = conf.whole("gradient_accumulation_steps")
    if steps is None:
        steps = max(1, SEQUENCES // (conf.gpus * rows))
        conf.assume("gradient_accumulation_steps", steps, "ms-swift's own: 16 sequences a step")
    conf.put("training.gradient_accumulation_steps", steps)
    conf.put("training.micro_batch_size", rows)
    if workers := conf.whole("dataloader_num_workers"):
        conf.put("host.data_loader_workers", workers)
    fills = conf.has("packing") and conf.yes("packing")
    conf.skip("packing", "padding_free")
    packs = fills or (conf.has("padding_free") and conf.yes("padding_free"))
    if packs and tokens and not conf.has("rlhf_type"):
        if not fills:
            trainer.length(conf, tokens, "max_length")
        trainer.without_padding(conf, tokens, rows)
    else:
        trainer.length(conf, tokens, "max_length")
        if packs:
            conf.leave("padding_free", "pairs without padding are not modelled: read as rows of the longest")
    asked = conf.has("val_dataset") or bool(conf.number("split_dataset_ratio"))
    trainer.evaluation(conf, asked, conf.whole("per_device_eval_batch_size"))


def _optimizer(conf: Configuration) -> None:
    if conf.has("use_galore") and conf.yes("use_galore"):
        each = conf.has("galore_optim_per_parameter") and conf.yes("galore_optim_per_parameter")
        conf.put("training.optimizer", "galore_adamw_layerwise" if each else "galore_adamw")
        if rank := conf.whole("galore_rank"):
            conf.put("training.optimizer_rank", rank)
        if each and conf.get("training.gradient_accumulation_steps") != 1:
            conf.leave("galore_optim_per_parameter", "steps within backward do not accumulate: read as one step after it")
            conf.put("training.optimizer", "galore_adamw")
        conf.skip("optim")
        return
    trainer.optimizer(conf)


def _objective(conf: Configuration) -> None:
    if conf.launch.program.rpartition(" ")[2] != "rlhf" and not conf.has("rlhf_type"):
        return
    kind = (conf.text("rlhf_type") or "dpo").lower()
    known = {"dpo": "dpo", "orpo": "orpo", "kto": "kto", "rm": "reward", "grpo": "grpo", "ppo": "ppo"}
    if kind not in known:
        conf.leave("rlhf_type", f"{kind}: not modelled; answered as supervised fine-tuning")
        return
    found: dict[str, object] = {"type": known[kind]}
    if (other := conf.text("ref_model")) and other != conf.get("model"):
        conf.leave("ref_model", f"{other}: the reference is taken for as large as the model that is trained")
    if kind == "grpo":
        found |= _grpo(conf)
    conf.put("training.objective", found)


def _grpo(conf: Configuration) -> dict[str, object]:
    """GRPO's reference, which ms-swift has unless `beta` is 0, and what writes the answers (arguments/rlhf_args.py)."""
    prompt = rollouts.lengths(conf, "max_length", conf.whole("max_length"), conf.whole("max_completion_length"))
    found = {"prompt_length": prompt, **rollouts.reference(conf, conf.number("beta"))}
    if not (conf.has("use_vllm") and conf.yes("use_vllm")):
        return {**found, "generation": {"engine": "transformers"}}
    share, asleep = conf.number("vllm_gpu_memory_utilization") or 0.9, bool(conf.whole("sleep_level"))
    mode, tensor = conf.text("vllm_mode"), conf.whole("vllm_tensor_parallel_size")
    return {**found, **rollouts.engine(mode, share, sleeps=asleep, tensor=tensor)}
