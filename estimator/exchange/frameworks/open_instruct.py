"""open-instruct's scripts: supervised fine-tuning and preferences with Accelerate, both and the learners of GRPO (grpo) with
OLMo-core, and those of grpo_fast under DeepSpeed.

open_instruct/{finetune,dpo_tune_cache,dpo_utils,dpo}.py at e6c3044aa620: the model is loaded in bf16; the reference's scores are
computed before training (dpo_tune_cache, dpo).
open_instruct/{olmo_core_utils,olmo_core_finetune,grpo_olmo_core_actor}.py: OLMo-core makes its models in float32 (its
nn/transformer/config.py, `dtype`), shards them within a node, and gathers them in bf16; what it fine-tunes on are full rows
(NumpyPackedFSLDataset); GRPO's reference is whole on each GPU.
open_instruct/{grpo_fast,grpo_utils,data_loader,utils}.py at the same: every learner checkpoints, whatever its arguments say; its
batches are packs of pack_length tokens; the reference is sharded under stage 3, and whole under the others.
"""

from __future__ import annotations

from pathlib import PurePath

from estimator.contract.errors import InvalidValue, NotModelled
from estimator.exchange import roles, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration

SCRIPTS = ("finetune", "olmo_core_finetune", "dpo_tune", "dpo_tune_cache", "dpo", "reward_modeling")
OLMO_CORE = ("dpo", "olmo_core_finetune", "grpo")
LEARNERS = ("grpo_fast", "grpo")


def read(conf: Configuration) -> None:
    """The job that arguments are."""
    script = PurePath(conf.launch.program.partition(" ")[0]).stem
    if not script:  # a file of arguments
        script = "dpo_tune_cache" if conf.has("beta") or conf.has("loss_type") else "finetune"
        conf.assume("script", f"{script}.py", "the file does not say which script takes it")
    if script not in (*SCRIPTS, *LEARNERS):
        raise NotModelled(
            f"open-instruct's {script[:40]} is not read; read are {', '.join((*SCRIPTS, *LEARNERS))}",
            "open-instruct",
        )
    conf.put("model", conf.text("config_name") if _is_path(conf.text("model_name_or_path")) else conf.text("model_name_or_path"))
    if _is_path(conf.text("model_name_or_path")) and conf.has("config_name"):
        conf.assume("model", conf.text("config_name"), "the checkpoint is a folder that is not here; its configuration is named")
    conf.skip("config_name")
    if script in LEARNERS:
        _learners(conf, script in OLMO_CORE)
        return
    if script in OLMO_CORE:
        _olmo_core(conf)
    else:
        spreading.spread(conf)
        trainer.precision(conf, "bf16", "bf16")
        _adapter(conf)
    trainer.run(conf)
    tokens, rows = conf.whole("max_seq_length"), conf.whole("per_device_train_batch_size") or 8
    if script == "finetune" and tokens:
        tokens = -(-tokens // _ulysses(conf))
    packs = conf.has("packing") and conf.yes("packing")
    if script == "olmo_core_finetune":
        conf.put("training.sequence_length", tokens or 4096)
    elif packs and tokens and script == "finetune":
        trainer.without_padding(conf, tokens, rows)
    else:
        trainer.length(conf, tokens, "max_seq_length")
    trainer.checkpointing(conf, script not in OLMO_CORE and conf.yes("gradient_checkpointing"))
    paged, bits = conf.yes("dpo_use_paged_optimizer"), conf.yes("use_8bit_optimizer")
    name = ("paged-adamw-8bit" if bits else "paged-adamw") if paged else ("adamw-8bit" if bits else "adamw_torch_fused")
    conf.put("training.optimizer", name)
    if (conf.number("max_grad_norm") or 0) > 0:
        conf.put("training.gradient_clipping", True)
    if conf.yes("use_flash_attn"):
        conf.put("training.attention", "flash_attention_2")
    trainer.liger(conf, conf.yes("use_liger_kernel"))
    if script == "olmo_core_finetune" and conf.text("loss_implementation") == "fused_linear":
        conf.put("training.loss", "fused")
    if script.startswith("dpo"):
        cached = script != "dpo_tune" or (conf.has("loss_type") and conf.text("loss_type") == "simpo")
        conf.put("training.objective", {"type": "dpo", **({"reference": "precomputed"} if cached else {})})
        if cached:
            conf.assume("reference", "precomputed", "its scores are computed before training")
    elif script == "reward_modeling":
        conf.put("training.objective", "reward")
    spreading.hardware(conf)


def _is_path(name: str | None) -> bool:
    return bool(name) and str(name).startswith(("/", "./", "~", "gs://"))


def _olmo_core(conf: Configuration) -> None:
    """OLMo-core's trainer: shards within a node, copies over nodes, unless it is told how many."""
    replicas = conf.whole("fsdp_num_replicas") or (conf.launch.nodes or 1)
    if shards := conf.whole("fsdp_shard_degree"):
        replicas = max(1, conf.gpus // shards)
    if conf.gpus > 1:
        conf.put("parallelism.strategy", "hsdp" if 1 < replicas < conf.gpus else "fsdp2")
        if 1 < replicas < conf.gpus:
            conf.put("parallelism.replicas", replicas)
    for key in ("tensor_parallel_degree", "cp_degree"):
        if (degree := conf.whole(key)) and degree > 1:
            conf.leave(key, f"{degree}: not modelled in OLMo-core; read as data parallelism")
    conf.put("training.precision", "bf16-mixed")
    conf.assume("precision", "bf16-mixed", "OLMo-core's weights, gradients and states are float32, and computed with in bf16")
    if str(conf.text("activation_checkpointing_mode")) == "selected_modules":
        conf.leave("activation_checkpointing_mode", "selected_modules: read as if every activation were kept; an upper bound")
    if conf.yes("compile_model"):
        conf.leave(
            "compile_model", "compiled blocks keep fewer activations, and other temporaries; the estimate is of plain ones"
        )


def _adapter(conf: Configuration) -> None:
    if not (conf.yes("use_lora") or conf.yes("use_qlora")):
        return
    trainer.quantized(conf, 4 if conf.yes("use_qlora") else None, double=True)
    targets = ["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]
    trainer.lora(conf, targets=targets, kept="fp32")


def _learners(conf: Configuration, olmo_core: bool) -> None:
    """The learners of GRPO, under DeepSpeed or OLMo-core, on GPUs of their own."""
    given = conf.take("num_learners_per_node")
    counts = [int(one) for one in conf.names("num_learners_per_node") if one.isdigit() and int(one)] or [int(given or 1)]
    conf.launch.gpus, conf.launch.nodes = max(counts), len(counts)
    if len({*counts}) > 1:
        conf.leave("num_learners_per_node", f"{counts[:8]}: nodes of unlike size are read as {max(counts)} learners in each")
    alone = conf.yes("single_gpu_mode")
    stage = 0
    if olmo_core:
        _olmo_core(conf)
        if alone:
            conf.put("training.precision", "bf16-true")
            conf.assume("precision", "bf16-true", "the model is made bf16 in single_gpu_mode")
    else:
        stage = _sharded(conf)
    _packs(conf)
    trainer.checkpointing(conf, not olmo_core)
    conf.skip("gradient_checkpointing", "use_flash_attn")
    conf.put("training.optimizer", "adamw_torch_fused")
    trainer.clipping(conf, "max_grad_norm")
    spreading.hardware(conf)
    conf.leave(
        "open-instruct grpo",
        "the answer is of the learners' update, with the loss of plain fine-tuning in place of its own, which keeps logits in "
        "the type of the products: an upper bound; passes that only score answers are not in it",
    )
    compared = not olmo_core or not conf.has("beta") or (conf.number("beta") or 0) > 0
    if compared and (not conf.has("load_ref_policy") or conf.yes("load_ref_policy")):
        roles.held(conf, "reference model", None, 2, conf.gpus if stage == 3 else 1)
    share = conf.number("vllm_gpu_memory_utilization")
    if alone:
        conf.leave(
            "single_gpu_mode",
            f"vLLM holds {share} of the same GPU all along, which is not in the answer; ask of it as of a server",
        )
    else:
        conf.leave("vllm_num_engines", "the engines that write answers have GPUs of their own: ask of them as of a server")


def _sharded(conf: Configuration) -> int:
    """DeepSpeed's stage, and what of it is on the host."""
    stage = conf.whole("deepspeed_stage") or 0
    if stage not in (0, 1, 2, 3):
        raise InvalidValue(f"{stage} is none of 0, 1, 2 and 3", conf.where("deepspeed_stage"))
    conf.put("parallelism.strategy", f"zero{stage or 1}")
    spreading.settle(conf)
    group = conf.whole("deepspeed_zpg") or 1
    if stage == 3 and group > 1 and conf.gpus % group == 0:
        conf.put("parallelism.zero_hpz_partition_size", group)
    if conf.yes("deepspeed_offload_optimizer"):
        conf.put("offload.optimizer", "cpu")
    if conf.yes("deepspeed_offload_param"):
        conf.put("offload.parameters", "cpu")
    conf.put("training.precision", "deepspeed-bf16")
    return stage


def _ulysses(conf: Configuration) -> int:
    """The ranks over which a sequence is divided."""
    ranks = conf.whole("sequence_parallel_size") or 1
    if ranks > 1:
        conf.leave("sequence_parallel_size", f"{ranks}: Ulysses is not modelled here; read as one rank's share of tokens")
    return ranks


def _packs(conf: Configuration) -> None:
    """A micro-batch of packs, which flash attention tells apart by their positions in a single row alone."""
    rows, tokens = conf.whole("per_device_train_batch_size") or 8, conf.whole("pack_length") or 512
    ranks = _ulysses(conf)
    tokens = -(-tokens // ranks)
    conf.put("training.attention", "flash_attention_2")
    if rows == 1:
        trainer.without_padding(conf, tokens, 1)
    else:
        conf.put("training.sequence_length", tokens)
        conf.put("training.micro_batch_size", rows)
    answers = (conf.whole("num_unique_prompts_rollout") or 16) * (conf.whole("num_samples_per_prompt_rollout") or 4)
    steps = (conf.whole("num_mini_batches") or 1) * max(1, conf.gpus // ranks) * rows
    conf.put("training.gradient_accumulation_steps", max(1, answers // steps))
