"""verl's overrides and YAML: the actor's update of `main_ppo` (PPO, GRPO and their like), and supervised fine-tuning.

verl 0.9.1: trainer/config/{ppo_trainer,ppo_megatron_trainer,sft_trainer,sft_trainer_engine}.yaml and what they are made of.
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import NotModelled
from estimator.exchange import megatron, roles, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration
from estimator.exchange.nested import flattened, interpolated

ACTOR, MODEL, ROLLOUT, REFERENCE = (f"actor_rollout_ref.{name}" for name in ("actor", "model", "rollout", "ref"))
FSDP = {"fsdp": "fsdp1", "fsdp2": "fsdp2"}
LOSS = "verl scores answers by flash-attn's cross-entropy, which keeps the logits once, in the type of the products"
MEGATRON = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
TRAINERS = ("ppo", "dapo", "grpo", "spin", "sft")
"""Parts of the names of programs that train an actor, or tune a model."""


def read(conf: Configuration) -> None:
    """The job that settings are."""
    conf.given = interpolated(flattened(conf.given))
    program = conf.launch.program.partition(" ")[0].removesuffix(".py").rpartition("/")[2].rpartition(".")[2]
    if program and not any(kind in program for kind in TRAINERS):
        raise NotModelled(f"verl's {program[:60]} trains nothing: main_ppo and sft_trainer are read", "verl")
    if "sft" in program or conf.has("model.partial_pretrain") or (conf.has("model.path") and not conf.has(f"{MODEL}.path")):
        _tuning(conf)
    else:
        _update(conf)


def _gpus(conf: Configuration) -> None:
    """As many as are started: by torchrun, or by the trainer."""
    if conf.launch.gpus is None:
        conf.launch.gpus = conf.whole("trainer.n_gpus_per_node") or 8
        conf.launch.nodes = conf.whole("trainer.nnodes") or 1
    conf.skip("trainer.n_gpus_per_node", "trainer.nnodes")


def _sharded(conf: Configuration, strategy: str, part: str) -> None:
    """Shards of float32 under a policy of bf16, as verl's FSDP has them."""
    name = FSDP.get(strategy)
    if name is None:
        conf.leave("strategy", f"{strategy[:40]}: read as fsdp2")
    conf.put("parallelism.strategy", name or "fsdp2")
    size = conf.whole(f"{part}.fsdp_size")
    if size and 1 < size < conf.gpus and conf.gpus % size == 0:
        conf.put("parallelism.strategy", "hsdp")
        conf.put("parallelism.replicas", conf.gpus // size)
    spreading.settle(conf)
    if conf.has(f"{part}.reshard_after_forward") and not conf.yes(f"{part}.reshard_after_forward") and conf.gpus > 1:
        conf.put("parallelism.reshard_after_forward", False)
    if conf.has(f"{part}.offload_policy") and conf.yes(f"{part}.offload_policy"):
        for what in ("parameters", "gradients", "optimizer"):
            conf.put(f"offload.{what}", "cpu")
    weights = trainer.dtype(conf, f"{part}.model_dtype")
    conf.put("training.precision", {"bf16": "bf16-true", "fp16": "16-true", "fp32": "bf16-mixed"}[weights])
    conf.put("training.autocast", True)


def _adapter(conf: Configuration, part: str) -> None:
    if rank := conf.whole(f"{part}.lora_rank"):
        given = conf.names(f"{part}.target_modules")
        targets: Any = "all-linear" if given in (["all-linear"], []) else given
        conf.put("training.adapter", {"type": "lora", "rank": rank, "targets": targets, "dtype": "fp32"})
        conf.put("training.precision", "bf16-mixed" if conf.get("training.precision") == "bf16-mixed" else "bf16-true")


def _kernels(conf: Configuration, part: str) -> None:
    if conf.has(f"{part}.use_liger") and conf.yes(f"{part}.use_liger"):
        trainer.liger(conf, True, fused=False)
    if conf.has(f"{part}.use_fused_kernels") and conf.yes(f"{part}.use_fused_kernels"):
        conf.put("training.loss", "fused")


def _rows(conf: Configuration, rows: int, tokens: int, packed: bool, attention: bool = True) -> None:
    """A micro-batch, whose padding is taken out where it is told so."""
    if attention:
        conf.put("training.attention", "flash_attention_2")
    if packed:
        trainer.without_padding(conf, tokens, rows, "without padding, and as long as it may be, a micro-batch is one row of")
    else:
        conf.put("training.sequence_length", tokens)
        conf.put("training.micro_batch_size", rows)


def _ulysses(conf: Configuration, key: str) -> int:
    """Ranks that share each sequence."""
    degree = conf.whole(key) or 1
    if degree > 1:
        conf.leave(
            key,
            f"{degree}: Ulysses' sequence parallelism is not modelled; read as the tokens of one rank, which see these alone",
        )
    return degree


def _update(conf: Configuration) -> None:
    """The phase in which the actor learns."""
    conf.put("model", conf.text(f"{MODEL}.path"))
    if conf.has("trainer.n_gpus_per_node"):
        conf.launch.gpus = None  # Ray starts as many, whatever else is visible
    _gpus(conf)
    named = conf.text("config-name") or ""
    mega = (
        "megatron" in named
        or conf.text(f"{ACTOR}.strategy") == "megatron"
        or any(f"{ACTOR}.megatron." in key for key in conf.given)
    )
    conf.skip("config-name", "config-path")
    prompt, answer = conf.whole("data.max_prompt_length") or 512, conf.whole("data.max_response_length") or 512
    rows, dynamic = conf.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu"), conf.yes(f"{ACTOR}.use_dynamic_bsz")
    if rows is None and (whole := conf.whole(f"{ACTOR}.ppo_micro_batch_size")):
        rows = max(1, whole // conf.gpus)
    if rows is None and not dynamic:
        conf.assume(f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1, "verl does not start without it, or use_dynamic_bsz; 1 is taken")
    _megatron(conf) if mega else _sharded(conf, conf.text(f"{ACTOR}.strategy") or "fsdp", f"{ACTOR}.fsdp_config")
    ranks = _ulysses(conf, f"{ACTOR}.ulysses_sequence_parallel_size")
    if dynamic:
        conf.skip(f"{MODEL}.use_remove_padding")
        most = max(conf.whole(f"{ACTOR}.ppo_max_token_len_per_gpu") or 16384, -(-(prompt + answer) // ranks))
        conf.assume("use_dynamic_bsz", most, "as many answers as have that many tokens on a GPU are one row")
        _rows(conf, 1, most, True, not mega)
        rows = max(1, most * ranks // (prompt + answer))
    else:
        packed = conf.yes(f"{MODEL}.use_remove_padding") and not mega
        _rows(conf, rows or 1, -(-(prompt + answer) // ranks), packed, not mega)
    mini = (conf.whole(f"{ACTOR}.ppo_mini_batch_size") or 256) * (conf.whole(f"{ROLLOUT}.n") or 1)
    conf.put("training.gradient_accumulation_steps", max(1, mini * ranks // (_copies(conf) * (rows or 1))))
    if not mega:
        trainer.checkpointing(conf, conf.yes(f"{MODEL}.enable_gradient_checkpointing"))
        if conf.has(f"{MODEL}.enable_activation_offload") and conf.yes(f"{MODEL}.enable_activation_offload"):
            conf.put("offload.activations", "cpu")
        conf.put("training.optimizer", "adamw_torch")
        trainer.clipping(conf, f"{ACTOR}.grad_clip")
        _adapter(conf, MODEL)
        _kernels(conf, MODEL)
        trainer.attention(conf, f"{MODEL}.override_config.attn_implementation")
        if conf.get("training.loss") is None:
            conf.put("training.loss", "flash")
            conf.assume("loss", "flash", LOSS)
    spreading.hardware(conf)
    _others(conf, mega)


def _copies(conf: Configuration) -> int:
    """How many parts a batch is divided in."""
    ranks = 1
    for name in ("tensor", "pipeline", "context"):
        ranks *= conf.get(f"parallelism.{name}") or 1
    return max(1, conf.gpus // ranks)


def _megatron(conf: Configuration) -> None:
    """Megatron-Core's actor, by the reader of Megatron-LM's arguments."""
    part, words = f"{ACTOR}.megatron", ["--bf16", "--use-distributed-optimizer", "--accumulate-allreduce-grads-in-fp32"]
    for name in MEGATRON:
        if degree := conf.whole(f"{part}.{name}"):
            words.append(f"--{name.replace('_', '-')} {degree}")
    if (conf.whole(f"{part}.tensor_model_parallel_size") or 1) > 1:
        words.append("--sequence-parallel")
    conf.skip(f"{MODEL}.use_remove_padding", f"{MODEL}.enable_gradient_checkpointing")  # FSDP's alone
    if _off(conf, f"{MODEL}.use_fused_kernels"):
        conf.leave(
            f"{MODEL}.use_fused_kernels", "true: the loss fused with Megatron's output layer is not modelled; its logits are made"
        )
    for name in ("recompute_granularity", "recompute_method", "recompute_num_layers"):
        if value := conf.take(f"{part}.override_transformer_config.{name}"):
            words.append(f"--{name.replace('_', '-')} {value}")
    found = megatron.read(" ".join(words))
    conf.job = {**found.job, **conf.job}
    conf.left_out += found.left_out
    if rank := conf.whole(f"{MODEL}.lora.rank") or conf.whole(f"{MODEL}.lora_rank"):
        conf.put("training.adapter", {"type": "lora", "rank": rank})


def _others(conf: Configuration, mega: bool) -> None:
    """What of the other phases and roles is counted, and what is not."""
    share, degree = conf.number(f"{ROLLOUT}.gpu_memory_utilization"), conf.whole(f"{ROLLOUT}.tensor_model_parallel_size") or 1
    engine = conf.text(f"{ROLLOUT}.name") or "vllm"
    awake = "" if conf.yes(f"{ROLLOUT}.free_cache_engine") else ", and holds it while the actor learns, which is not counted"
    conf.leave(
        ROLLOUT,
        f"the answer is of the actor's update: the phase in which {engine} writes answers, over {degree} GPUs each, takes "
        f"{share} of each GPU{awake}; ask of it as of a server",
    )
    conf.leave(f"{ROLLOUT}.log_prob", "the passes that only score the answers before the update are not in the answer")
    moved = [what for what in ("param_offload", "optimizer_offload") if _off(conf, f"{ACTOR}.fsdp_config.{what}")]
    if moved:
        conf.leave(
            f"{ACTOR}.fsdp_config", f"{', '.join(moved)}: shards leave the GPU between the phases; in the update they are there"
        )
    ranks = conf.gpus if not mega else (conf.get("parallelism.tensor") or 1) * (conf.get("parallelism.pipeline") or 1)
    wide = 2 if mega else 4
    if (_off(conf, f"{ACTOR}.use_kl_loss") or _off(conf, "algorithm.use_kl_in_reward")) and not conf.get("training.adapter"):
        away = _off(conf, f"{REFERENCE}.fsdp_config.param_offload") or _off(conf, f"{REFERENCE}.megatron.param_offload")
        if away:
            conf.assume("reference model", None, "its shards wait in the host's memory (ref.fsdp_config.param_offload)")
        else:
            roles.held(conf, "reference model", None, wide, ranks)
    if (conf.text("algorithm.adv_estimator") or "gae") == "gae":
        name = conf.text("critic.model.path")
        kept = 0 if _off(conf, "critic.model.fsdp_config.param_offload") else wide
        kept += 0 if _off(conf, "critic.model.fsdp_config.optimizer_offload") else 8
        if kept:
            roles.held(conf, "critic", name, kept, ranks)
        conf.leave(
            "critic", "the critic's own update is not in the answer: as long a step, of a model with one value for each token"
        )
    if _off(conf, "reward_model.enable") or _off(conf, "reward.reward_model.enable"):
        conf.leave("reward_model", "what it keeps on each GPU, and the phase in which it scores, are not in the answer")


def _off(conf: Configuration, key: str) -> bool:
    """Whether a switch that is off unless it is said is on."""
    return conf.has(key) and conf.yes(key)


def _tuning(conf: Configuration) -> None:
    """Supervised fine-tuning, with the trainer of before 0.6 (`partial_pretrain`) or the engines of now."""
    older = conf.has("model.partial_pretrain")
    conf.put("model", conf.text("model.partial_pretrain") or conf.text("model.path"))
    _gpus(conf)
    part = "model.fsdp_config" if older else "engine"
    conf.given.setdefault(f"{part}.model_dtype", conf.given.get("model.fsdp_config.model_dtype") or "fp32")
    _sharded(conf, conf.text("model.strategy" if older else "engine.strategy") or ("fsdp2" if older else "fsdp"), part)
    if _off(conf, f"{part}.cpu_offload") or _off(conf, f"{part}.offload_params"):
        for what in ("parameters", "gradients", "optimizer"):
            conf.put(f"offload.{what}", "cpu")
    rows, tokens = conf.whole("data.micro_batch_size_per_gpu") or 4, conf.whole("data.max_length") or 1024
    ranks = _ulysses(conf, "ulysses_sequence_parallel_size" if older else "engine.ulysses_sequence_parallel_size")
    trainer.length(conf, tokens, "data.max_length")
    dynamic = not older and (_off(conf, "data.use_dynamic_bsz") or not conf.has("data.use_dynamic_bsz"))
    if dynamic:
        most = conf.whole("data.max_token_len_per_gpu") or 8192
        conf.assume("data.use_dynamic_bsz", most, "as many samples as have that many tokens on a GPU are one row")
        _rows(conf, 1, most, True)
        rows = max(1, most * ranks // tokens)
    else:
        packed = _off(conf, "use_remove_padding") or _off(conf, "model.use_remove_padding")
        _rows(conf, rows, -(-tokens // ranks), packed)
    whole = conf.whole("data.train_batch_size") or 256
    conf.put("training.gradient_accumulation_steps", max(1, whole * ranks // (conf.gpus * rows)))
    key = "model.enable_gradient_checkpointing"
    if not conf.has(key):
        conf.assume(key, not older, "off in the trainer of before 0.6" if older else "on in verl")
    trainer.checkpointing(conf, _off(conf, key) or not (older or conf.has(key)))
    conf.put("training.optimizer", "adamw_torch")
    conf.put("training.gradient_clipping", True)
    _adapter(conf, "model")
    _kernels(conf, "model")
    spreading.hardware(conf)
