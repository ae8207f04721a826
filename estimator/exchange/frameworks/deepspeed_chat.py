"""DeepSpeed-Chat's supervised fine-tuning.

applications/DeepSpeed-Chat/training: step1_supervised_finetuning/main.py, utils/ds_utils.py (clipping at 1.0),
utils/module/lora.py (matrices beside layers whose names have `lora_module_name` in them).
"""

from __future__ import annotations

from estimator.contract.errors import InvalidValue
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration


def read(conf: Configuration) -> None:
    """The job that arguments are."""
    conf.put("model", conf.text("model_name_or_path"))
    stage = conf.whole("zero_stage") or 0
    if stage not in (0, 1, 2, 3):
        raise InvalidValue(f"{stage} is none of 0, 1, 2 and 3", conf.where("zero_stage"))
    if stage or conf.gpus == 1:
        conf.put("parallelism.strategy", f"zero{stage or 1}")
        if not stage:
            conf.assume("zero_stage", 1, "on one GPU stage 0 and stage 1 hold the same")
    else:
        conf.leave(
            "zero_stage", "0 on several GPUs: each holds float32 copies and states of its own; read as mixed precision under DDP"
        )
    spreading.settle(conf)
    if conf.yes("offload"):
        conf.put("offload.optimizer", "cpu")
        if stage == 3:
            conf.put("offload.parameters", "cpu")
    kind = trainer.dtype(conf, "dtype")
    if rank := conf.whole("lora_dim"):
        conf.put("training.adapter", {"type": "lora", "rank": rank, "dtype": kind})
        if not conf.yes("only_optimize_lora"):
            why = "without only_optimize_lora embeddings and norms are trained beside the matrices, which the job does not have"
            conf.leave("only_optimize_lora", why)
    mixed = {"fp16": "16-mixed", "bf16": "bf16-mixed"}.get(kind, "32-true")
    zero = (conf.get("parallelism.strategy") or "").startswith("zero") and kind != "fp32"
    conf.put("training.precision", f"deepspeed-{kind}" if zero else mixed)
    conf.put("training.micro_batch_size", conf.whole("per_device_train_batch_size"))
    conf.put("training.gradient_accumulation_steps", conf.whole("gradient_accumulation_steps"))
    conf.put("training.sequence_length", conf.whole("max_seq_len"))
    trainer.checkpointing(conf, conf.yes("gradient_checkpointing"))
    conf.put("training.gradient_clipping", True)
    spreading.hardware(conf)
