"""Accelerate's configuration (YAML), as `accelerate config` writes it: DDP, FSDP 1 and 2, and DeepSpeed.

accelerate/commands/config of Accelerate 1.15 (read 2026-11-22).
"""

from __future__ import annotations

from typing import Any

import yaml

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.contract.reading import parse_yaml
from estimator.exchange.found import Found, LeftOut, Settings
from estimator.parallel.zeropp import FIELDS

MIXED = {"bf16": "bf16-mixed", "fp16": "16-mixed", "no": "32-true"}
PRECISIONS = {"bf16-mixed": "bf16", "deepspeed-bf16": "bf16", "16-mixed": "fp16", "deepspeed-fp16": "fp16"}
SILENT = frozenset(
    {
        "compute_environment",
        "debug",
        "downcast_bf16",
        "enable_cpu_affinity",
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "use_cpu",
    }
)
SILENT_FSDP = frozenset(
    {
        "fsdp_auto_wrap_policy",
        "fsdp_cpu_ram_efficient_loading",
        "fsdp_forward_prefetch",
        "fsdp_state_dict_type",
        "fsdp_sync_module_states",
        "fsdp_transformer_layer_cls_to_wrap",
        "fsdp_use_orig_params",
    }
)


def write(job: Job) -> str:
    """The file, for a job with its defaults."""
    parallelism, hardware = job.parallelism, job.hardware
    strategy = parallelism.strategy or "none"
    if parallelism.tensor * parallelism.pipeline * parallelism.context > 1:
        raise InvalidJob("only data parallelism is written for Accelerate", "parallelism")
    kind, inner = _kind(job, strategy)
    settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        **inner,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": PRECISIONS.get(job.training.precision, "no"),
        "num_machines": hardware.nodes,
        "num_processes": hardware.gpus * hardware.nodes,
        "use_cpu": False,
    }
    return yaml.safe_dump(settings, sort_keys=False)


def _kind(job: Job, strategy: str) -> tuple[str, dict[str, Any]]:
    """`distributed_type`, and what belongs to it."""
    if strategy == "none":
        return "NO", {}
    if strategy == "ddp":
        return "MULTI_GPU", {}
    if strategy.startswith("zero"):
        return "DEEPSPEED", {"deepspeed_config": _deepspeed(job, strategy)}
    parallelism, offloads = job.parallelism, job.offload.parameters == "cpu"
    recomputes = job.training.activation_checkpointing == "full"
    fsdp: dict[str, Any] = {"fsdp_version": 1 if strategy == "fsdp1" else 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    fsdp |= {"fsdp_activation_checkpointing": recomputes, "fsdp_offload_params": offloads}
    if strategy == "fsdp1":
        prefetch = "BACKWARD_PRE" if parallelism.backward_prefetch else "NO_PREFETCH"
        fsdp |= {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_backward_prefetch": prefetch, "fsdp_use_orig_params": True}
        return "FSDP", {"fsdp_config": fsdp}
    fsdp["fsdp_reshard_after_forward"] = parallelism.reshard_after_forward
    if strategy != "hsdp":
        return "FSDP", {"fsdp_config": fsdp}
    replicas = parallelism.replicas or 1
    sizes = {"dp_replicate_size": replicas, "dp_shard_size": (parallelism.data or 1) // replicas}
    return "FSDP", {
        "fsdp_config": fsdp,
        "parallelism_config": {f"parallelism_config_{name}": size for name, size in sizes.items()},
    }


def _deepspeed(job: Job, strategy: str) -> dict[str, Any]:
    for name, usual in FIELDS.items():
        if getattr(job.parallelism, name) != usual:
            raise InvalidJob(
                "Accelerate takes it from DeepSpeed's own file only (deepspeed_config_file): write that", f"parallelism.{name}"
            )
    return {
        "zero_stage": int(strategy[-1]),
        "gradient_accumulation_steps": job.training.gradient_accumulation_steps,
        "offload_optimizer_device": job.offload.optimizer,
        "offload_param_device": job.offload.parameters,
        **({"gradient_clipping": 1.0} if job.training.gradient_clipping else {}),
    }


def read(text: str) -> Found:
    """What a file says of a job."""
    return found(parse_yaml(text, "accelerate"))


def found(given: Any) -> Found:
    """What Accelerate's configuration, given as a mapping, says of a job."""
    asked = Settings(given, "accelerate")
    machines, processes = asked.number("num_machines"), asked.number("num_processes")
    if machines < 1 or processes < 1 or processes % machines:
        raise InvalidJob(f"{processes} processes do not divide by {machines} machines", "accelerate.num_processes")
    mixed = str(asked.take("mixed_precision", "no")).lower().replace("false", "no")
    if mixed not in MIXED:
        raise InvalidJob(f"{mixed} is not modelled; write bf16, fp16 or no", "accelerate.mixed_precision")
    kind = str(asked.take("distributed_type", "NO")).upper()
    left: list[LeftOut] = []
    if kind == "NO" and processes > 1:
        left.append(LeftOut(key="accelerate.num_processes", why=f"{processes}: distributed_type NO starts one process"))
        machines = processes = 1
    job: dict[str, Any] = {
        "hardware": {"gpus": processes // machines, "nodes": machines},
        "training": {"precision": MIXED[mixed]},
    }
    if kind in ("NO", "MULTI_GPU"):
        job["parallelism"] = {"strategy": "ddp" if kind == "MULTI_GPU" else "none"}
    elif kind == "DEEPSPEED":
        left += _of_deepspeed(asked.part("deepspeed_config"), job)
    elif kind == "FSDP":
        left += _of_fsdp(asked, job)
    else:
        raise InvalidJob(f"{kind} is not read; NO, MULTI_GPU, FSDP and DEEPSPEED are", "accelerate.distributed_type")
    return Found(framework="accelerate", version="1.15", job=job, left_out=[*left, *asked.left(SILENT)])


def _of_deepspeed(zero: Settings, job: dict[str, Any]) -> list[LeftOut]:
    if config := zero.take("deepspeed_config_file"):
        return [LeftOut(key="accelerate.deepspeed_config.deepspeed_config_file", why=f"{config}: read that file as deepspeed's")]
    stage = zero.number("zero_stage", 2)
    job["parallelism"] = {"strategy": f"zero{stage}" if stage else "ddp"}
    job["training"]["gradient_accumulation_steps"] = zero.number("gradient_accumulation_steps")
    if zero.amount("gradient_clipping"):
        job["training"]["gradient_clipping"] = True
    places = {"optimizer": zero.take("offload_optimizer_device", "none"), "parameters": zero.take("offload_param_device", "none")}
    if offload := {name: place for name, place in places.items() if place != "none"}:
        job["offload"] = offload
    return list(zero.left(frozenset({"zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher"})))


def _of_fsdp(asked: Settings, job: dict[str, Any]) -> list[LeftOut]:
    fsdp, degrees = asked.part("fsdp_config"), asked.part("parallelism_config")
    newer = fsdp.number("fsdp_version") == 2
    parallelism: dict[str, Any] = {"strategy": "fsdp2" if newer else "fsdp1"}
    sharding = fsdp.take("fsdp_sharding_strategy", "FULL_SHARD")
    reshard = fsdp.take("fsdp_reshard_after_forward", True)
    if isinstance(reshard, str) and reshard.lower() not in ("true", "false"):
        sharding, reshard = reshard, True
    if str(sharding) not in ("FULL_SHARD", "1"):
        raise InvalidJob(f"{sharding} is not modelled; write FULL_SHARD", "accelerate.fsdp_config.fsdp_sharding_strategy")
    if str(reshard).lower() == "false":
        parallelism["reshard_after_forward"] = False
    if str(fsdp.take("fsdp_backward_prefetch", "BACKWARD_PRE")) == "NO_PREFETCH" and not newer:
        parallelism["backward_prefetch"] = False
    if (replicas := degrees.number("parallelism_config_dp_replicate_size")) > 1:
        parallelism |= {"strategy": "hsdp", "replicas": replicas}
    job["parallelism"] = parallelism
    job["training"]["activation_checkpointing"] = "full" if fsdp.yes("fsdp_activation_checkpointing") else "none"
    if fsdp.yes("fsdp_offload_params"):
        job["offload"] = dict.fromkeys(("parameters", "gradients", "optimizer"), "cpu")
    return [*fsdp.left(SILENT_FSDP), *degrees.left(frozenset({"parallelism_config_dp_shard_size"}))]
