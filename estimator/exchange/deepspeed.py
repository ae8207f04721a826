"""DeepSpeed's configuration (JSON): ZeRO's stage, offloading, precision and batches.

https://www.deepspeed.ai/docs/config-json (read 2026-11-22).
"""

from __future__ import annotations

import json
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.exchange.found import Found, Settings, without
from estimator.parallel.zeropp import FIELDS

HALF = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
PRECISIONS = {"bf16-mixed": "bf16", "deepspeed-bf16": "bf16", "16-mixed": "fp16", "deepspeed-fp16": "fp16"}
STAGES = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
USUAL = {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
    "overlap_comm": False,
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "allgather_partitions": True,
    "round_robin_gradients": False,
    "stage3_gather_16bit_weights_on_model_save": False,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
}
"""What our model of ZeRO takes for granted."""
SILENT = frozenset(
    {"steps_per_print", "wall_clock_breakdown", "train_batch_size", "scheduler", "optimizer", "zero_allow_untested_optimizer"}
)


def write(job: Job) -> str:
    """The file, for a job with its defaults."""
    return json.dumps(settings(job), indent=2) + "\n"


def settings(job: Job) -> dict[str, Any]:
    """What the file says."""
    training, strategy = job.training, job.parallelism.strategy or "none"
    if strategy not in STAGES:
        raise InvalidJob(f"DeepSpeed has zero1, zero2 and zero3, not {strategy}", "parallelism.strategy")
    if job.parallelism.tensor * job.parallelism.pipeline * job.parallelism.context > 1:
        raise InvalidJob("only data parallelism is written for DeepSpeed", "parallelism")
    zero: dict[str, Any] = {"stage": STAGES[strategy]}
    if job.offload.optimizer != "none":
        zero["offload_optimizer"] = {"device": job.offload.optimizer, "pin_memory": True}
    if job.offload.parameters != "none":
        zero["offload_param"] = {"device": job.offload.parameters, "pin_memory": True}
    zero |= without({name: getattr(job.parallelism, name) for name in FIELDS}, FIELDS)
    half = PRECISIONS.get(training.precision)
    return {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        **({half: {"enabled": True}} if half else {}),
        **({"gradient_clipping": 1.0} if training.gradient_clipping else {}),
        "zero_optimization": zero,
    }


def read(text: str) -> Found:
    """What a file says of a job."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidJob(f"is not JSON: {error}", "deepspeed") from None
    return found(given)


def found(given: Any) -> Found:
    """What DeepSpeed's configuration, given as a mapping, says of a job."""
    all_of = Settings(given, "deepspeed")
    zero = all_of.part("zero_optimization")
    stage = zero.number("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise InvalidJob(f"there is no stage {stage}; write 0, 1, 2 or 3", "deepspeed.zero_optimization.stage")
    enabled = [name for name in HALF if all_of.part(name).yes("enabled")]
    training: dict[str, Any] = {"precision": HALF[enabled[0]] if enabled else "32-true"}
    training["micro_batch_size"] = all_of.number("train_micro_batch_size_per_gpu")
    training["gradient_accumulation_steps"] = all_of.number("gradient_accumulation_steps")
    if all_of.amount("gradient_clipping"):
        training["gradient_clipping"] = True
    places = {name: zero.part(f"offload_{short}").take("device", "none") for name, short in PLACES.items()}
    parallelism: dict[str, Any] = {"strategy": f"zero{stage}" if stage else "ddp"}
    if stage == 3:  # the others have no use for them
        parallelism |= _plus_plus(zero)
    left = [f"deepspeed.zero_optimization.{name}: {value}" for name, value in _unusual(zero).items()]
    job: dict[str, Any] = {"training": training, "parallelism": parallelism}
    if offload := without(places, dict.fromkeys(PLACES, "none")):
        job["offload"] = offload
    return Found(job=job, left_out=[*left, *all_of.left(SILENT)])


PLACES = {"optimizer": "optimizer", "parameters": "param"}


def _plus_plus(zero: Settings) -> dict[str, Any]:
    """ZeRO++'s settings."""
    group = zero.number("zero_hpz_partition_size")
    quantized = {name: True for name, usual in FIELDS.items() if usual is False and zero.yes(name)}
    return ({"zero_hpz_partition_size": group} if group > 1 else {}) | quantized


def _unusual(zero: Settings) -> dict[str, Any]:
    """Settings of ZeRO that are not as our model has them."""
    return {name: value for name, value in zero.given.items() if value != "auto" and USUAL.get(name) != value}
