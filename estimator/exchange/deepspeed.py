"""DeepSpeed's configuration (JSON): ZeRO's stage, offloading, precision and batches.

https://www.deepspeed.ai/docs/config-json (read 2026-11-22).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from estimator.contract.errors import InvalidJob, InvalidValue
from estimator.contract.job import Job
from estimator.contract.reading import parse_json
from estimator.exchange.found import Found, LeftOut, Settings, without
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
    if job.parallelism.zero_reduce_bucket_size is not None:
        zero["reduce_bucket_size"] = job.parallelism.zero_reduce_bucket_size
    if job.parallelism.zero_overlap_comm:
        zero["overlap_comm"] = True
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
    return found(parse_json(text, "deepspeed"))


AUTO = "auto: what the Trainer's own arguments say, which are not in this file"


def found(given: Any, trained: bool = False, hidden: int | None = None) -> Found:
    """What DeepSpeed's configuration, given as a mapping, says of a job.

    `trained`: the arguments of a Trainer are read with it, which say what is `auto`. Without them `auto` is left out, by name.
    `hidden`: the width of its model, whose square is the bucket where that is `auto` (transformers, integrations/deepspeed.py).
    """
    left = [] if trained else [LeftOut(key=f"deepspeed.{key}", why=AUTO) for key in _autos(given)]
    all_of = Settings(given, "deepspeed")
    unsaid = [name for name in HALF if isinstance(part := all_of.given.get(name), Mapping) and part.get("enabled") == "auto"]
    zero = all_of.part("zero_optimization")
    stage = zero.number("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise InvalidValue(f"there is no stage {stage}; write 0, 1, 2 or 3", "deepspeed.zero_optimization.stage")
    enabled = [name for name in HALF if all_of.part(name).yes("enabled")]
    training: dict[str, Any] = {"precision": HALF[enabled[0]] if enabled else "32-true"}
    if unsaid and not enabled:
        del training["precision"]
    for name, ours in BATCHES.items():
        if all_of.given.get(name) != "auto":
            training[ours] = all_of.number(name)
        all_of.given.pop(name, None)
    if all_of.amount("gradient_clipping"):
        training["gradient_clipping"] = True
    places = {name: zero.part(f"offload_{short}").take("device", "none") for name, short in PLACES.items()}
    parallelism: dict[str, Any] = {"strategy": f"zero{stage}" if stage else "ddp"}
    if stage:
        parallelism |= _buckets(zero, stage, hidden if trained else None)
    if stage == 3:  # the others have no use for them
        parallelism |= _plus_plus(zero)
    left += [
        LeftOut(key=f"deepspeed.zero_optimization.{name}", why=f"{value}: {OTHERWISE}") for name, value in _unusual(zero).items()
    ]
    job: dict[str, Any] = {"training": training, "parallelism": parallelism}
    if offload := without(places, dict.fromkeys(PLACES, "none")):
        job["offload"] = offload
    rest = (one for one in all_of.left(SILENT) if not one.why.startswith("auto:"))
    return Found(framework="deepspeed", version=READ, job=job, left_out=[*left, *rest])


def _autos(given: Any, path: str = "") -> Iterator[str]:
    """The settings that are `auto`, of those that matter."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if value == "auto" and name not in SILENT:
            yield f"{path}{name}"
        elif name not in SILENT:
            yield from _autos(value, f"{path}{name}.")


READ = "documentation of 2026-11-22"
OTHERWISE = "the model of ZeRO takes another value for granted"
BATCHES = {"train_micro_batch_size_per_gpu": "micro_batch_size", "gradient_accumulation_steps": "gradient_accumulation_steps"}
PLACES = {"optimizer": "optimizer", "parameters": "param"}


def _buckets(zero: Settings, stage: int, hidden: int | None) -> dict[str, Any]:
    """The bucket of gradients, and whether there are two."""
    automatic = hidden * hidden if hidden and zero.given.get("reduce_bucket_size") == "auto" else 0
    size = zero.amount("reduce_bucket_size") or automatic
    if not 0 <= size < inf:
        raise InvalidValue(f"{size} is no number of elements: write one such as 500000000", f"{zero.where}.reduce_bucket_size")
    said: dict[str, Any] = {} if size in (0, USUAL["reduce_bucket_size"]) else {"zero_reduce_bucket_size": int(size)}
    return said | ({"zero_overlap_comm": True} if stage < 3 and zero.yes("overlap_comm") else {})


def _plus_plus(zero: Settings) -> dict[str, Any]:
    """ZeRO++'s settings."""
    group = zero.number("zero_hpz_partition_size")
    quantized = {name: True for name, usual in FIELDS.items() if usual is False and zero.yes(name)}
    return ({"zero_hpz_partition_size": group} if group > 1 else {}) | quantized


def _unusual(zero: Settings) -> dict[str, Any]:
    """Settings of ZeRO that are not as our model has them."""
    return {name: value for name, value in zero.given.items() if value != "auto" and USUAL.get(name) != value}
