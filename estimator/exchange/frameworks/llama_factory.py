"""LLaMA-Factory's YAML, and the arguments of `llamafactory-cli`.

src/llamafactory of 0.9.5: hparams/parser.py, model/adapter.py (what is trained is cast to float32 unless pure_bf16, BAdam, or
ZeRO-3 without quantization), model/model_utils/checkpointing.py (on unless disabled, in torch's older way).
"""

from __future__ import annotations

from estimator.contract.errors import InvalidValue, NotModelled
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration

METHODS = {"bnb": {8: "int8"}, "hqq": {8: "hqq-int8", 4: "hqq-int4", 3: "hqq-int3", 2: "hqq-int2"}, "eetq": {8: "eetq-int8"}}
MEGATRON = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "context_parallel_size",
    "use_distributed_optimizer",
)
SWITCHES = {"use_galore": "galore_adamw", "use_apollo": "apollo_adamw", "use_muon": "muon"}
OBJECTIVES = {"rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}


def read(conf: Configuration) -> None:
    """The job that a file is."""
    conf.put("model", conf.text("model_name_or_path"))
    _refuse(conf)
    trains = any(conf.has(key) for key in ("do_train", "finetuning_type", "dataset", "output_dir", "per_device_train_batch_size"))
    if not trains:
        return _serves(conf)
    if conf.has("ray_num_workers") and conf.launch.gpus is None:
        conf.launch.gpus = conf.whole("ray_num_workers")
    conf.skip("ray_num_workers")
    spreading.spread(conf)
    kind = (conf.text("finetuning_type") or "lora").lower()
    _quantized(conf)
    if kind == "lora":
        given = conf.names("lora_target")
        trainer.lora(conf, targets="all-linear" if given in (["all"], []) else given, kept=_kept(conf))
        if saved := conf.names("additional_target"):
            conf.put("training.adapter.modules_to_save", saved)
    elif kind == "freeze":
        layers = conf.whole("freeze_trainable_layers") or 2
        conf.put("training.trainable", {"last": layers} if layers > 0 else {"layers": f"0-{-layers - 1}"})
    elif kind == "oft":
        sizes = (
            {"blocks": conf.whole("oft_rank")} if conf.whole("oft_rank") else {"block_size": conf.whole("oft_block_size") or 32}
        )
        given = conf.names("oft_target")
        targets = "all-linear" if given in (["all"], []) else given
        conf.put("training.adapter", {"type": "oft", "dtype": _kept(conf), "targets": targets, **sizes})
    elif kind != "full":
        raise InvalidValue(f"{kind[:40]!r} is none of lora, full, freeze and oft", conf.where("finetuning_type"))
    _types(conf, kind)
    trainer.run(conf)
    _lengths(conf)
    on = not conf.yes("disable_gradient_checkpointing")
    older = not conf.has("use_reentrant_gc") or conf.yes("use_reentrant_gc")
    conf.skip("use_reentrant_gc", "gradient_checkpointing")
    trainer.checkpointing(conf, on, older)
    if on and not conf.has("disable_gradient_checkpointing"):
        conf.assume("gradient_checkpointing", True, "on unless disabled, in torch's older way (use_reentrant_gc)")
    if conf.has("use_unsloth_gc") and conf.yes("use_unsloth_gc"):
        conf.put("offload.activations", "cpu")
    _optimizer(conf)
    trainer.clipping(conf)
    flash = conf.text("flash_attn")
    if flash == "disabled":
        conf.put("training.attention", "eager")
    else:
        trainer.attention(conf, "flash_attn")
    stage = (conf.text("stage") or "sft").lower()
    trainer.liger(conf, conf.yes("enable_liger_kernel"), fused=stage in ("pt", "sft"))
    _objective(conf, stage)
    trainer.towers(conf, "freeze_language_model", "freeze_vision_tower", "freeze_multi_modal_projector")
    trainer.segments(conf, "llamafactory-cli sets it where it starts several processes (launcher.py)", "llamafactory-cli", 2)
    spreading.hardware(conf)
    return None


def _refuse(conf: Configuration) -> None:
    """Raise for files of what LLaMA-Factory does by other programs, or trains nothing in."""
    if (name := next((one for one in MEGATRON if conf.has(one)), None)) is not None:
        raise NotModelled(
            "LLaMA-Factory's training by Megatron (mcore_adapter, Megatron-Bridge) is not read yet: write a job with "
            "implementation: megatron, or Megatron-LM's arguments",
            conf.where(name),
        )
    if conf.has("use_kt") and conf.yes("use_kt"):
        raise NotModelled("experts that KTransformers keeps on the CPU are not modelled", conf.where("use_kt"))
    if conf.has("export_dir"):
        raise NotModelled("it merges and saves a model, and neither trains nor serves it", conf.where("export_dir"))
    if conf.has("do_predict") and conf.yes("do_predict") and not (conf.has("do_train") and conf.yes("do_train")):
        raise NotModelled("it only predicts: write do_train, or a job with task: serve", conf.where("do_predict"))


def _quantized(conf: Configuration) -> None:
    bits, method = conf.whole("quantization_bit"), (conf.text("quantization_method") or "bnb").lower()
    double, kind = conf.yes("double_quantization"), conf.text("quantization_type") or "nf4"
    if bits is None:
        conf.assumed = [one for one in conf.assumed if one.key != "double_quantization"]
        return
    if bits == 4 and method == "bnb":
        trainer.quantized(conf, 4, double, kind)
    elif bits in METHODS.get(method, {}):
        conf.put("training.quantization", METHODS[method][bits])
    else:
        conf.leave("quantization_bit", f"{bits} bits of {method}: not modelled; the weights are taken for whole")
    if conf.has("upcast_layernorm") and conf.yes("upcast_layernorm") and conf.get("training.quantization"):
        conf.put("training.upcast_unquantized", "norms")


def _kept(conf: Configuration) -> str:
    """What is trained is float32, but for pure bf16, and ZeRO-3 without quantization."""
    strategy = conf.get("parallelism.strategy")
    if (conf.has("pure_bf16") and conf.yes("pure_bf16")) or (strategy == "zero3" and not conf.get("training.quantization")):
        return "bf16"
    return "fp32"


def _types(conf: Configuration, kind: str) -> None:
    pure, badam = conf.has("pure_bf16") and conf.yes("pure_bf16"), conf.has("use_badam") and conf.yes("use_badam")
    mixed = trainer.half(conf)
    conf.skip("pure_bf16")
    if badam:
        conf.put("training.trainable", {"badam": True})
        if conf.text("badam_mode") not in (None, "layer"):
            conf.leave("badam_mode", "ratio: read as layer")
    conf.skip("badam_mode", "use_badam")
    if pure or (badam and mixed is None):
        trainer.precision(conf, "bf16", None)
        if not pure:
            conf.assume(
                "precision", "bf16-true", "neither bf16 nor pure_bf16 is said: the checkpoint's type, of weights and states"
            )
        return
    if mixed is None:
        conf.assume("precision", "float32", "neither bf16 nor fp16 is said: LLaMA-Factory casts what is trained to float32")
    trainer.precision(conf, mixed or "bf16", mixed, trained="fp32" if kind == "full" and not badam else None)
    if kind == "freeze" and mixed:
        conf.leave("finetuning_type", "freeze: the trained layers are float32 in LLaMA-Factory, in the job of the model's type")


def _lengths(conf: Configuration) -> None:
    tokens = conf.whole("cutoff_len") or 2048
    stage = conf.text("stage")
    packs = (conf.has("packing") and conf.yes("packing")) or (not conf.has("packing") and stage == "pt")
    neat = conf.has("neat_packing") and conf.yes("neat_packing")
    conf.skip("packing", "neat_packing")
    if packs or neat:
        conf.put("training.sequence_length", tokens)
        if neat and conf.get("training.micro_batch_size") == 1:
            conf.put("training.attention_mask", "packed")
        elif neat:
            conf.leave("neat_packing", "several rows of documents with a mask of their own: read as rows without one")
        if not conf.has("packing") and not neat:
            conf.assume("packing", True, "on for pre-training: every row is full")
    else:
        trainer.length(conf, tokens, "cutoff_len")
    asked = str(conf.take("eval_strategy") or conf.take("evaluation_strategy") or "no").lower()
    trainer.evaluation(conf, asked not in ("no", "false"), conf.whole("per_device_eval_batch_size"))


def _optimizer(conf: Configuration) -> None:
    for key, name in SWITCHES.items():
        if conf.has(key) and conf.yes(key):
            method = key.removeprefix("use_")
            layerwise = conf.has(f"{method}_layerwise") and conf.yes(f"{method}_layerwise")
            conf.put("training.optimizer", f"{name}_layerwise" if layerwise else name)
            if rank := conf.whole(f"{method}_rank"):
                conf.put("training.optimizer_rank", rank)
            conf.skip("optim")
            return
    if conf.has("use_adam_mini") and conf.yes("use_adam_mini"):
        conf.leave("use_adam_mini", "Adam-mini keeps one second moment for a block of parameters; AdamW's are counted")
    trainer.optimizer(conf)


def _objective(conf: Configuration, stage: str) -> None:
    loss = conf.text("pref_loss") or "sigmoid"
    if stage == "dpo" and loss in ("orpo", "simpo"):
        if loss == "simpo":
            conf.leave("pref_loss", "simpo: not modelled; answered as orpo, which has no reference either")
        conf.put("training.objective", {"type": "orpo"})
    elif stage in OBJECTIVES:
        conf.put("training.objective", {"type": OBJECTIVES[stage]})
    elif stage not in ("sft", "pt"):
        raise InvalidValue(f"{stage[:40]!r} is none of sft, pt, rm, dpo, kto and ppo", conf.where("stage"))


def _serves(conf: Configuration) -> None:
    """A file of `llamafactory-cli chat` or `api`."""
    conf.put("task", "serve")
    engine = conf.text("infer_backend") or "huggingface"
    conf.put("serving.engine", "vllm" if engine == "vllm" else "transformers")
    if engine in ("sglang", "ktransformers"):
        conf.leave("infer_backend", f"{engine}: not modelled; answered as transformers")
    if engine == "vllm":
        conf.put("serving.context", conf.whole("vllm_maxlen"))
        conf.put("serving.gpu_memory_utilization", conf.number("vllm_gpu_util"))
    spreading.hardware(conf)
