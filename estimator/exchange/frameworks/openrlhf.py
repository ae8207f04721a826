"""OpenRLHF's command lines, with dots as since 0.10 or flat as before: fine-tuning, reward models, preferences, and the actor's
update of PPO and its like over Ray.

openrlhf 0.11.2: cli/train_{sft,rm,dpo,kto,ppo_ray}.py, utils/deepspeed/deepspeed_utils.py (the training and the scoring
configuration: a model that only scores is sharded under ZeRO-3, and whole on each GPU under the other stages).
"""

from __future__ import annotations

from estimator.contract.errors import InvalidValue, NotModelled
from estimator.exchange import roles, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration

KINDS = ("sft", "rm", "dpo", "kto", "kd", "ppo_ray", "ppo")
PAIRS = (
    "chosen and rejected answers are one step of twice the sequences, with the loss of plain fine-tuning in place of their own"
)


def read(conf: Configuration) -> None:
    """The job that arguments are."""
    kind = conf.launch.program.partition(" ")[0].rpartition(".")[2].removeprefix("train_")
    if not conf.launch.program:
        kind = "ppo_ray" if any(key.startswith(("actor.", "rollout.", "critic.")) for key in conf.given) else "sft"
        conf.assume("command", f"train_{kind}", "settings alone: which of OpenRLHF's commands they are of is told by their keys")
    if kind not in KINDS:
        raise NotModelled(
            f"OpenRLHF's {kind[:40] or 'command'} trains nothing that is read; read are {', '.join(KINDS)}", "openrlhf"
        )
    ray = kind.startswith("ppo")
    conf.put("model", conf.text("actor.model_name_or_path" if ray else "model.model_name_or_path") or conf.text("pretrain"))
    if ray:
        conf.launch.gpus = conf.whole("actor.num_gpus_per_node") or 8
        conf.launch.nodes = conf.whole("actor.num_nodes") or 1
    stage = conf.whole("ds.zero_stage")
    if stage not in (0, 1, 2, 3):
        raise InvalidValue(f"{stage} is none of 0, 1, 2 and 3", conf.where("ds.zero_stage"))
    conf.put("parallelism.strategy", f"zero{stage or 1}")
    spreading.settle(conf)
    if conf.yes("ds.adam_offload"):
        conf.put("offload.optimizer", "cpu")
    _types(conf)
    _batches(conf, kind)
    trainer.checkpointing(
        conf, conf.yes("model.gradient_checkpointing_enable"), conf.yes("model.gradient_checkpointing_reentrant")
    )
    trainer.attention(conf, "ds.attn_implementation")
    trainer.liger(conf, conf.yes("ds.use_liger_kernel"), fused=kind == "sft")
    if (conf.text("optim") or "adam") == "muon":
        conf.put("training.optimizer", "muon")
    else:
        conf.put("training.optimizer", "adamw_torch_fused")
    conf.skip("optim")
    trainer.clipping(conf, "max_norm")
    if kind == "rm":
        conf.put("training.objective", "reward")
    spreading.hardware(conf)
    if kind in ("dpo", "kto", "kd"):
        _compared(conf, kind, stage)
    elif ray:
        _beside(conf, stage)


def _types(conf: Configuration) -> None:
    """Weights, and adapters, which DeepSpeed holds in the same type."""
    half = trainer.dtype(conf, "ds.param_dtype")
    if conf.has("bf16") and conf.yes("bf16"):
        half = "bf16"
    if rank := conf.whole("ds.lora.rank"):
        given = conf.names("ds.lora.target_modules")
        found = {"type": "lora", "rank": rank, "targets": "all-linear" if given in (["all-linear"], []) else given, "dtype": half}
        if dropout := conf.number("ds.lora.dropout"):
            found["dropout"] = dropout
        conf.put("training.adapter", found)
        if conf.yes("ds.load_in_4bit"):
            conf.put("training.quantization", "nf4-double")
    elif conf.yes("ds.load_in_4bit"):
        conf.leave("ds.load_in_4bit", "without an adapter nothing could be trained; the weights are taken for whole")
    conf.put("training.precision", f"deepspeed-{half}" if half != "fp32" else "32-true")


def _batches(conf: Configuration, kind: str) -> None:
    """Rows and their tokens: a micro-batch without padding is one row."""
    rows, whole = conf.whole("train.micro_batch_size") or 8, conf.whole("train.batch_size") or 128
    ranks = 1
    for key in ("ds.ring_attn_size", "ds.tensor_parallel_size"):
        degree = conf.whole(key) or 1
        if degree > 1:
            conf.leave(key, f"{degree}: not modelled under DeepSpeed; read as the share of one rank of each sequence")
        ranks *= degree
    if kind.startswith("ppo"):
        prompt, answer = conf.whole("data.prompt_max_len"), conf.whole("rollout.max_new_tokens")
        tokens = conf.whole("data.max_len") or (prompt or 1024) + (answer or 1024)
    else:
        tokens = conf.whole("data.max_len") or 2048
    trainer.length(conf, tokens, "data.max_len")
    copies = max(1, conf.gpus // ranks)
    conf.put("training.gradient_accumulation_steps", max(1, whole // (rows * copies)))
    if conf.has("train.dynamic_batch_enable") and conf.yes("train.dynamic_batch_enable"):
        most = max(conf.whole("train.max_tokens_per_gpu") or 16192, -(-tokens // ranks))
        conf.assume("train.dynamic_batch_enable", most, "as many samples as have that many tokens on a GPU are one row")
        trainer.without_padding(conf, most, 1)
    elif conf.yes("ds.packing_samples"):
        trainer.without_padding(conf, -(-tokens // ranks), rows * (2 if kind == "dpo" else 1))
    else:
        conf.put("training.sequence_length", -(-tokens // ranks))
        conf.put("training.micro_batch_size", rows * (2 if kind == "dpo" else 1))


def _scoring(conf: Configuration, role: str, model: str | None, stage: int, offloaded: bool = False) -> None:
    """A model that only scores: sharded under ZeRO-3, else whole."""
    if offloaded:
        conf.assume(role, None, "its weights wait in the host's memory")
    else:
        roles.held(conf, role, model, 2, conf.gpus if stage == 3 else 1)


def _compared(conf: Configuration, kind: str, stage: int) -> None:
    """Losses that compare two models."""
    if kind == "dpo":
        conf.leave(
            "openrlhf train_dpo", f"preferences under ZeRO are not modelled: {PAIRS}; the pass of the reference is not in it"
        )
    else:
        conf.leave(f"openrlhf train_{kind}", "its loss is not modelled under ZeRO: answered as supervised fine-tuning")
    role = "teacher model" if kind == "kd" else "reference model"
    key = "model.teacher_model_name_or_path" if kind == "kd" else "ref.model_name_or_path"
    offloaded = conf.has("ref.offload") and conf.yes("ref.offload")
    if conf.get("training.adapter") and kind != "kd" and not conf.has(key):
        conf.assume(role, None, "a second model, as without an adapter")
    _scoring(conf, role, conf.text(key), stage, offloaded)


def _beside(conf: Configuration, stage: int) -> None:
    """PPO's other models: on the actor's GPUs, or on their own."""
    everything = conf.yes("train.colocate_all")
    both = everything or conf.yes("train.colocate_actor_ref")
    conf.leave(
        "openrlhf train_ppo_ray",
        "the answer is of the actor's update, on its own GPUs, with the loss of plain fine-tuning in place of its own; phases "
        "that write and score answers, and the updates of other models, are not in it",
    )
    coefficient = conf.number("algo.kl.init_coef")
    if coefficient is None or coefficient > 0:
        offloaded = conf.has("ref.offload") and conf.yes("ref.offload")
        if both:
            _scoring(conf, "reference model", None, stage, offloaded)
        else:
            conf.leave("ref.num_gpus_per_node", "the reference model is on GPUs of its own, which the answer is not of")
    critic = conf.text("critic.model_name_or_path")
    learns = critic is not None or conf.has("critic.num_gpus_per_node")
    remote, reward = conf.has("reward.remote_url"), conf.text("reward.model_name_or_path")
    if not everything:
        if learns or (reward and not remote):
            conf.leave("critic.num_gpus_per_node", "critic and reward model are on GPUs of their own, which the answer is not of")
    else:
        if learns:
            asleep = conf.has("ds.enable_sleep") and conf.yes("ds.enable_sleep")
            roles.held(conf, "critic", critic or reward, 2 if asleep or conf.get("offload.optimizer") else 14, conf.gpus)
        if reward and not remote:
            _scoring(conf, "reward model", reward, stage)
    share = conf.number("vllm.gpu_memory_utilization")
    if not everything:
        conf.leave("vllm.num_engines", "the engines that write answers have GPUs of their own: ask of them as of a server")
    elif conf.has("vllm.enable_sleep") and conf.yes("vllm.enable_sleep"):
        conf.leave(
            "vllm.gpu_memory_utilization",
            f"{share}: the engines give their share back while the actor learns; ask of them as of a server",
        )
    else:
        conf.job, why = roles.engine_held(conf.job, share or 0.0)
        conf.leave("vllm.gpu_memory_utilization", f"{share}: without vllm.enable_sleep {why}")
