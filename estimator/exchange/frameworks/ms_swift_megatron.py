"""ms-swift's `megatron sft|pt|rlhf`, by the reader of Megatron-LM's arguments.

ms-swift 4.6: megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

from estimator.exchange import megatron, trainer
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import Configuration
from estimator.exchange.found import LeftOut

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
    "num_virtual_stages_per_pipeline_rank",
)
SWITCHES = ("sequence_parallel", "use_distributed_optimizer", "cross_entropy_loss_fusion", "fp8_param_gather")
DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def read(conf: Configuration) -> None:
    """The job that arguments are."""
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
    ranks = 1
    for name in DEGREES:
        ranks *= conf.whole(name) or 1
    rows, whole = conf.whole("micro_batch_size") or 1, conf.whole("global_batch_size") or 16
    data = max(1, conf.gpus // ranks)
    conf.put("training.gradient_accumulation_steps", max(1, whole // (rows * data)))
    trainer.length(conf, conf.whole("max_length"), "max_length")
    tuner = conf.text("tuner_type") or "full"
    if tuner != "full":
        conf.put("training.adapter", {"type": "lora", "rank": conf.whole("lora_rank") or 8})
    if conf.gpus < ranks and conf.around.hardware is None:
        conf.launch.gpus = ranks
        conf.assume("gpus", ranks, "as many as its degrees multiply to")
    spreading.hardware(conf)
