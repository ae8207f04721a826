"""ms-swift's `megatron sft|pt|rlhf`, by the reader of Megatron-LM's arguments.

ms-swift 4.6: megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

from estimator.contract.errors import WillItFitError
from estimator.exchange import megatron, roles, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration
from estimator.exchange.found import LeftOut
from estimator.specs.resolve import resolve

VALUES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "fp8_format",
    "fp8_recipe",
    "mtp_num_layers",
    "moe_expert_capacity_factor",
    "cross_entropy_fusion_impl",
    "optimizer_offload_fraction",
    "num_virtual_stages_per_pipeline_rank",
)
SWITCHES = (
    "sequence_parallel",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
    "use_distributed_optimizer",
    "cross_entropy_loss_fusion",
    "fp8_param_gather",
    "optimizer_cpu_offload",
)
COMPARED = (
    "not modelled under Megatron: answered as fine-tuning, of pairs on chosen and rejected answers, twice the sequences; the "
    "passes that only score are not in it"
)
WRITTEN = (
    "not modelled under Megatron: the answer is of the update, as fine-tuning on prompts and answers; writing and scoring them, "
    "and what an engine holds beside it, are not in it"
)
ANSWER = 512
"""Tokens of an answer where the file says nothing (max_completion_length)."""
SINCE = {"blockwise": "h100-80gb", "mxfp8": "b200"}
"""The first card of each recipe of fp8 that older ones do not have."""
DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def read(conf: Configuration) -> None:
    """The job that arguments are."""
    _roles(conf)
    words = []
    for name in VALUES:
        value = conf.take(name)
        if value is not None and str(value).lower() != "none":
            shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"--{name.replace('_', '-')} {shown}")
    words += [f"--{name.replace('_', '-')}" for name in SWITCHES if conf.yes(name)]
    found = megatron.read(" ".join(words))
    conf.job = dict(found.job)
    conf.left_out += [LeftOut(key=one.key, why=one.why) for one in found.left_out]
    conf.put("model", conf.text("model"))
    _stages(conf)
    ranks = 1
    for name in DEGREES:
        ranks *= conf.whole(name) or 1
    rows, whole = conf.whole("micro_batch_size") or 1, conf.whole("global_batch_size") or 16
    data = max(1, conf.gpus // ranks)
    conf.put("training.gradient_accumulation_steps", max(1, whole // (rows * data)))
    kind = str(conf.take("rlhf_type") or "dpo") if "rlhf" in conf.launch.program or conf.has("rlhf_type") else ""
    if kind in ("dpo", "rm"):
        conf.put("training.micro_batch_size", 2 * rows)
    if kind:
        conf.leave("rlhf_type", f"{kind}: {WRITTEN if kind in ('grpo', 'gkd') else COMPARED}")
    if (task := conf.text("task_type")) not in (None, "causal_lm"):
        conf.leave("task_type", f"{task}: read as a language model, whose logits it does not make; an upper bound")
    tokens, answer = conf.whole("max_length"), conf.whole("max_completion_length")
    if kind == "grpo" and tokens:
        tokens += answer or ANSWER
    if tokens and conf.has("packing") and conf.yes("packing"):
        conf.put("training.sequence_length", tokens)
    else:
        trainer.length(conf, tokens, "max_length")
    tuner = conf.text("tuner_type") or "full"
    if tuner != "full":
        _adapter(conf)
    if conf.gpus < ranks and conf.around.hardware is None:
        conf.launch.gpus = ranks
        conf.assume("gpus", ranks, "as many as its degrees multiply to")
    spreading.hardware(conf)
    narrow(conf)
    compared = kind in ("dpo", "kto") or (kind == "grpo" and conf.number("beta") != 0)
    if compared and tuner == "full":
        tensor, stages, expert, experts_tensor = (
            conf.whole(name) or 1
            for name in (
                "tensor_model_parallel_size",
                "pipeline_model_parallel_size",
                "expert_model_parallel_size",
                "expert_tensor_parallel_size",
            )
        )
        roles.held(conf, "reference model", None, 2, tensor * stages, experts=stages * expert * experts_tensor)


def _roles(conf: Configuration) -> None:
    """The settings of whoever trains, where a file of `--use_ray` has a section for each role; others write answers, or teach."""
    part = conf.part("train")
    if not part:
        return
    conf.given = {**conf.given, **{str(key): value for key, value in part.items() if key != "gpus"}}
    conf.given["train.gpus"] = part.get("gpus")
    conf.launch.gpus = conf.whole("train.gpus")
    conf.skip("rollout", "teacher", "colocate_groups")
    if not conf.has("rlhf_type"):
        conf.given["rlhf_type"] = "grpo"


def _adapter(conf: Configuration) -> None:
    """LoRA in the model's type: Megatron-Core's `Float16Module`, which comes after PEFT, makes it so."""
    found: dict[str, object] = {"type": "lora", "rank": conf.whole("lora_rank") or 8}
    dropped = conf.number("lora_dropout") if conf.has("lora_dropout") else 0.05
    conf.put("training.adapter", {**found, **({"dropout": dropped} if dropped else {})})
    conf.skip("lora_dropout", "target_modules")
    given = conf.names("target_modules")
    if given not in ([], ["all-linear"]):
        conf.leave("target_modules", f"{' '.join(given)}: read as all linear layers")


def narrow(conf: Configuration) -> None:
    """Products in fp8 by blocks run from Hopper on: a file that says them, and no GPU, is of such a card."""
    recipe = conf.get("training.fp8.recipe")
    if recipe in SINCE and not any(conf.get(f"hardware.{name}") for name in ("gpu", "memory")):
        conf.put("hardware.gpu", SINCE[recipe])
        conf.assume("gpu", SINCE[recipe], f"fp8 by {recipe} runs on no older card, and the file names none")


def _stages(conf: Configuration) -> None:
    """The layers of each stage of a pipeline, where the first or the last has others than the rest."""
    first, last = (conf.whole(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
    stages = conf.get("parallelism.pipeline") or 1
    if stages < 2 or (first is None and last is None):
        return
    try:
        spec = resolve(conf.get("model") or "", conf.around.allow_files).spec
        layers = getattr(spec.language_model, "num_hidden_layers", None)
    except WillItFitError:
        layers = None
    between = stages - (first is not None) - (last is not None)
    rest = (layers or 0) - (first or 0) - (last or 0)
    if layers is None or rest < 0 or (rest % between if between else rest):
        conf.leave("decoder_first_pipeline_num_layers", "these stages do not make the layers of the model: read as equal")
        return
    given = [*([first] if first is not None else []), *[rest // between] * between, *([last] if last is not None else [])]
    conf.put("parallelism.pipeline_layers", given)
