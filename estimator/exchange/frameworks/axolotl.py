"""axolotl's YAML.

axolotl 0.21: utils/schemas/config.py, loaders/model.py (types, `prepare_model_for_kbit_training`, the cast after it),
loaders/adapter.py, utils/collators (multipack: the samples of a micro batch are one row).
"""

from __future__ import annotations

from estimator.contract.errors import InvalidValue, NotModelled
from estimator.exchange import roles, rollouts, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration
from estimator.exchange.found import Settings
from estimator.exchange.roles import has_experts

PLUGINS = "axolotl.integrations."
NVFP4 = ("use_sonicmoe", "nvfp4_merge_aware")
"""Switches with which a checkpoint in NVFP4 stays as it is (monkeypatch/torchao_nvfp4_merge.py, integrations/kernels)."""
ATTENTIONS = ("flash_attention", "sdp_attention", "flex_attention", "xformers_attention", "eager_attention")
OBJECTIVES = {"dpo": "dpo", "ipo": "dpo", "orpo": "orpo", "kto": "kto", "grpo": "grpo"}


def read(conf: Configuration) -> None:
    """The job that a file is."""
    conf.put("model", conf.text("base_model"))
    if (shards := conf.whole("dp_shard_size")) and conf.around.hardware is None and conf.launch.gpus is None:
        conf.launch.gpus = shards * (conf.whole("dp_replicate_size") or 1)
    conf.skip("dp_replicate_size")
    spreading.spread(conf)
    spreading.degrees(conf, tensor="tensor_parallel_size", context="context_parallel_size", expert="expert_parallel_size")
    trainer.attention(conf, "attn_implementation") if conf.has("attn_implementation") else _flags(conf)
    _types(conf)
    _batches(conf)
    _checkpointing(conf)
    trainer.optimizer(conf, "optimizer")
    trainer.clipping(conf)
    _kernels(conf)
    _objective(conf)
    if layers := conf.whole("lisa_n_layers"):
        conf.put("training.trainable", {"lisa": layers})
    trainer.segments(conf, "axolotl's command sets it (utils/__init__.py)", "axolotl")
    spreading.hardware(conf)
    roles.on_parameters(conf)


def _flags(conf: Configuration) -> None:
    """Attention by its older switches."""
    on = [name for name in ATTENTIONS if conf.has(name) and conf.yes(name)]
    named = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}
    for name in on:
        if name in named:
            conf.put("training.attention", named[name])
        else:
            conf.leave(name, "a job has no such attention; sdpa is taken")


def _types(conf: Configuration) -> None:
    """Weights, arithmetic, quantization and adapters."""
    bits = 4 if conf.yes("load_in_4bit") else 8 if conf.yes("load_in_8bit") else None
    kind = (conf.text("adapter") or "").lower()
    weights = "bf16"
    if conf.has("float32") and conf.yes("float32"):
        weights, half = "fp32", None
    elif conf.given.get("bf16") == "full" or any(conf.has(name) and conf.yes(name) for name in ("bfloat16", "float16")):
        half, weights = None, "fp16" if conf.has("float16") and conf.yes("float16") else "bf16"
    else:
        half = trainer.half(conf)
        weights = half or "fp32"
    conf.skip("bf16", "fp16", "lora_target_linear", "lora_target_modules")
    if kind == "qlora" and bits is None and not (conf.has("gptq") and conf.yes("gptq")):
        raise InvalidValue(
            "qlora without load_in_4bit, with which axolotl does not start: write it, or lora", conf.where("adapter")
        )
    if kind in ("lora", "qlora"):
        _bitsandbytes(conf, bits)
        _experts(conf, bits)
        if conf.has("gptq") and conf.yes("gptq"):
            conf.put("training.quantization", "gptq-int4")
        targets = "all-linear" if conf.has("lora_target_linear") and conf.yes("lora_target_linear") else None
        given = conf.take("lora_target_modules")
        trainer.lora(
            conf,
            targets=targets or (given if isinstance(given, str) and given else conf.names("lora_target_modules")),
            kept="fp32",
        )
        if saved := conf.names("lora_modules_to_save"):
            conf.put("training.adapter.modules_to_save", saved)
        conf.skip("peft_use_dora", "gptq")
        if conf.has("peft_use_dora") and conf.yes("peft_use_dora"):
            conf.put("training.adapter.type", "dora")
        conf.assume("adapter dtype", "float32", "PEFT holds adapters in float32 (autocast_adapter_dtype)")
    elif kind:
        conf.leave("adapter", f"{kind}: only lora and qlora are read; everything is trained")
    elif bits:
        conf.leave(f"load_in_{bits}bit", "without an adapter nothing could be trained; the weights are taken for whole")
    trainer.precision(conf, weights, half)
    if kind and any(conf.has(name) and conf.yes(name) for name in NVFP4) and "nvfp4" in str(conf.get("model")).lower():
        raise NotModelled(
            "a checkpoint that stays in NVFP4 beneath adapters is not modelled: made whole, it would take about twice the "
            "memory; write the model's own name with load_in_4bit",
            conf.where("base_model"),
        )
    trainer.tf32(conf)


def _bitsandbytes(conf: Configuration, bits: int | None) -> None:
    """axolotl's settings of bitsandbytes, which a file's own come after (`bnb_config.update`)."""
    own = conf.part("bnb_config_kwargs")
    kind = str(own.get("bnb_4bit_quant_type", "nf4")).lower()
    if kind not in ("nf4", "fp4"):
        raise InvalidValue(f"{kind[:40]!r} is neither nf4 nor fp4", conf.where("bnb_config_kwargs"))
    compute = trainer.TYPES.get(str(own.get("bnb_4bit_compute_dtype", "")).removeprefix("torch."))
    double = own.get("bnb_4bit_use_double_quant", True) not in (False, "false")
    trainer.quantized(conf, bits, double, kind, compute if compute == "fp32" else None)


def _experts(conf: Configuration, bits: int | None) -> None:
    """Experts in few bits, too (monkeypatch/moe_quant.py): in 4 by bitsandbytes' parametrization, in 8 by axolotl's own."""
    if not conf.has("quantize_moe_experts") or not conf.yes("quantize_moe_experts") or bits is None:
        return
    if bits == 8:
        conf.leave("quantize_moe_experts", "experts in 8 bits are not modelled: they count in the type of the weights")
    elif has_experts(conf.get("model"), conf.around.allow_files):
        conf.put("training.quantized_experts", True)


def _batches(conf: Configuration) -> None:
    """Rows and their tokens. With multipack the samples of a micro batch are one row, which is full."""
    tokens, rows = conf.whole("sequence_len") or 512, conf.whole("micro_batch_size") or 1
    steps = conf.whole("gradient_accumulation_steps") or 1
    if (whole := conf.whole("batch_size")) and not conf.has("gradient_accumulation_steps"):
        steps = max(1, whole // (rows * conf.gpus))
    packed = conf.yes("sample_packing") and not conf.has("rl")
    if packed:
        trainer.without_padding(conf, tokens, rows, "multipack makes one row of")
    else:
        trainer.length(conf, tokens, "sequence_len")
        conf.put("training.micro_batch_size", rows)
    conf.put("training.gradient_accumulation_steps", steps)
    evaluates = bool(conf.number("val_set_size")) or conf.has("test_datasets")
    batch = conf.whole("eval_batch_size") or rows
    trainer.evaluation(conf, evaluates, 1 if packed else batch, tokens * batch if packed else None)


def _checkpointing(conf: Configuration) -> None:
    """Recomputed layers, and activations that wait in the host's memory."""
    asked = conf.take("gradient_checkpointing")
    offloads = str(asked).lower() in ("offload", "offload_disk", "unsloth")
    on = offloads or conf.yes("gradient_checkpointing") or conf.get("training.activation_checkpointing") == "full"
    said = trainer.reentrant(conf)
    zero3 = conf.get("parallelism.strategy") == "zero3"
    trainer.checkpointing(conf, on, zero3 if said is None else said)
    if on and zero3 and said is None:
        conf.assume("use_reentrant", True, "axolotl checkpoints in torch's older way under ZeRO-3")
    if str(asked).lower() == "offload_disk":
        conf.leave("gradient_checkpointing", "offload_disk: read as offloading to the host's memory")
    moved = conf.take("activation_offloading")
    if moved in (True, "true", "legacy", "hidden_states") or offloads:
        conf.put("offload.activations", "cpu")
    elif moved not in (None, False):
        conf.leave("activation_offloading", f"{moved}: not modelled; activations stay on the GPU")


def _kernels(conf: Configuration) -> None:
    """Fused losses and layers, which plugins bring."""
    plugins = [name.removeprefix(PLUGINS) for name in conf.names("plugins")]
    liger = [name for name in ("liger_rope", "liger_rms_norm", "liger_glu_activation") if conf.has(name) and conf.yes(name)]
    conf.skip("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_layer_norm", "liger_cross_entropy")
    fused = conf.has("liger_fused_linear_cross_entropy") and conf.yes("liger_fused_linear_cross_entropy")
    if any(name.startswith("liger") for name in plugins) and (liger or fused):
        if len(liger) == 3:
            trainer.liger(conf, True, fused=fused)
        else:
            conf.put("training.loss", "fused" if fused else "eager")
            if liger:
                conf.leave("plugins", f"of Liger's kernels only {', '.join(liger)}: read as transformers' own, which keep more")
    if any(name.startswith("cut_cross_entropy") for name in plugins):
        conf.put("training.loss", "cut")
    elif conf.has("chunked_cross_entropy") and conf.yes("chunked_cross_entropy"):
        conf.put("training.loss", "chunked")
    kernels = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
    off = [name for name in kernels if conf.has(name) and not conf.yes(name)]
    conf.skip(*kernels)
    if conf.get("training.adapter") and not conf.get("training.adapter.dropout") and len(off) < 3:
        conf.leave(
            "lora_mlp_kernel", "axolotl's LoRA kernels, on where dropout is 0, keep fewer activations; the estimate is of PEFT's"
        )


def _objective(conf: Configuration) -> None:
    """Preferences, rewards, and generation."""
    conf.skip("trl", "vllm")
    if conf.has("process_reward_model") and conf.yes("process_reward_model"):
        conf.leave(
            "process_reward_model", "a classification of tokens is not modelled: read as fine-tuning of the language model"
        )
    if conf.has("reward_model") and conf.yes("reward_model"):
        conf.put("training.objective", "reward")
        return
    kind = (conf.text("rl") or "").lower()
    if not kind:
        return
    if kind not in OBJECTIVES:
        conf.leave("rl", f"{kind}: not modelled; answered as supervised fine-tuning")
        return
    found: dict[str, object] = {"type": OBJECTIVES[kind]}
    if kind == "grpo":
        found |= _grpo(conf)
    conf.put("training.objective", found)


def _grpo(conf: Configuration) -> dict[str, object]:
    """GRPO's lengths, its reference, and what writes the answers, by the settings in `trl` and `vllm`."""
    trl, vllm = (Settings(conf.part(name), conf.where(name)) for name in ("trl", "vllm"))
    prompt, answer = trl.number("max_prompt_length", 0), trl.number("max_completion_length", 0)
    found = {"prompt_length": rollouts.lengths(conf, "axolotl", prompt or None, answer or None)}
    found |= rollouts.reference(conf, trl.amount("beta"))
    if not trl.yes("use_vllm"):
        return {**found, "generation": {"engine": "transformers"}}
    asleep, mode = trl.yes("vllm_enable_sleep_mode"), str(trl.take("vllm_mode", "server"))
    share, tensor = vllm.amount("gpu_memory_utilization") or 0.3, vllm.number("tensor_parallel_size")
    return {**found, **rollouts.engine(mode, share, sleeps=asleep, tensor=tensor)}
