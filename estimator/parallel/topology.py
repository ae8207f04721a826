"""How a job's GPUs are shared out: the degrees of each kind of parallelism, checked against the model and the hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Parallelism
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.strategies import FSDP2, STRATEGIES, Strategy, strategy_of
from estimator.parallel.tensor_checks import check_tensor
from estimator.parallel.zeropp import check_plus_plus

MEGATRON_ONLY = (
    "expert_tensor",
    "sequence",
    "pipeline_layers",
    "pipeline_schedule",
    "model_chunks",
    "micro_batch_group",
    "context_exchange",
    "tp_comm_overlap",
    "overlap_grad_reduce",
    "overlap_param_gather",
)
"""Fields of a job's parallelism that its modules alone have."""
USUAL = {field: Parallelism.model_fields[field].default for field in MEGATRON_ONLY}


@dataclass(frozen=True, slots=True)
class Topology:
    """Degrees that multiply to all GPUs, and what data-parallel ranks share (`strategy`; hsdp is fsdp2 with replicas).

    Experts are spread over `expert` of the ranks of data, context and tensor, and each over `expert_tensor`. `stage`: whose
    memory is asked, of the pipeline's.
    """

    gpus: int
    data: int
    tensor: int
    strategy: Strategy
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    stage: int = 0

    @property
    def expert_data(self) -> int:
        """Ranks that hold the same experts."""
        return self.data * self.context * self.tensor // (self.expert * self.expert_tensor)


def topology(job: Job, spec: ModelSpec) -> Topology:
    """The topology of a job with its defaults. Raises `InvalidJob` for degrees that do not fit each other, and `NotModelled`."""
    asked, gpus = job.parallelism, job.hardware.gpus * job.hardware.nodes
    megatron = job.task == "train" and job.training.implementation == "megatron"
    if not megatron:
        _refuse(job, spec)
    elif asked.tp_comm_overlap and asked.tensor > job.hardware.gpus:
        raise NotModelled(
            f"userbuffers are modelled among GPUs of a node: tensor: {job.hardware.gpus} or fewer", "parallelism.tp_comm_overlap"
        )
    data, strategy = asked.data or 1, strategy_of(job)
    degrees = {"data": data, "tensor": asked.tensor, "pipeline": asked.pipeline, "context": asked.context}
    if math.prod(degrees.values()) != gpus:
        said = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if name in ("data", "tensor") or degree > 1)
        raise Contradiction(f"{said} are {math.prod(degrees.values())} GPUs, but the hardware has {gpus}", "parallelism")
    _check_replicas(job, data, strategy)
    if strategy.alone and data > 1 and job.task == "train":
        known = "ddp or zero1" if megatron else _either(*(name for name, one in STRATEGIES.items() if not one.alone))
        raise Contradiction(f"{data} data-parallel GPUs need a strategy: {known}", "parallelism.strategy")
    strategy = FSDP2 if strategy.replicated else strategy  # of which it is one, with replicas
    inner = asked.expert_tensor or asked.tensor
    if (ranks := data * asked.context * asked.tensor) % (asked.expert * inner):
        raise Contradiction(
            f"experts over {asked.expert} x {inner} ranks do not fit the {ranks} of data, context and tensor",
            "parallelism.expert",
        )
    return Topology(gpus, data, asked.tensor, strategy, asked.pipeline, asked.context, asked.expert, inner)


def _either(*names: str) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def _check_replicas(job: Job, data: int, strategy: Strategy) -> None:
    """Raise `Contradiction` where `replicas` does not fit hsdp, or settings of FSDP2 or ZeRO++ are given to another strategy."""
    replicas = job.parallelism.replicas
    if strategy.replicated and (replicas is None or replicas < 2 or data % replicas or data == replicas):
        raise Contradiction(
            f"{data} data-parallel GPUs are not {replicas or 1} groups that hold the same, of several each; write a number that "
            "divides them, or fsdp2, or ddp",
            "parallelism.replicas",
        )
    if not strategy.replicated and replicas is not None:
        raise Contradiction("only hsdp has replicas: leave it out", "parallelism.replicas")
    if not strategy.dtensors and not job.parallelism.gradient_sync:
        raise Contradiction("only fsdp2 and hsdp can do without: leave it out", "parallelism.gradient_sync")
    check_plus_plus(job, data, strategy.stage)
    _check_buckets(job, strategy.stage)


def _check_buckets(job: Job, stage: int) -> None:
    """Raise for buckets of DeepSpeed's where there is no DeepSpeed, and `NotModelled` for stage 3's second one."""
    deepspeed = stage > 0 and job.training.implementation != "megatron"  # whose buckets are its own
    for name, given in (
        ("zero_reduce_bucket_size", job.parallelism.zero_reduce_bucket_size is not None),
        ("zero_overlap_comm", job.parallelism.zero_overlap_comm),
    ):
        if given and not deepspeed:
            raise Contradiction("only DeepSpeed's zero1, zero2 and zero3 have it: leave it out", f"parallelism.{name}")
    if job.parallelism.zero_overlap_comm and stage == 3:
        raise NotModelled("is modelled of zero1 and zero2 only: leave it out", "parallelism.zero_overlap_comm")


def _refuse(job: Job, spec: ModelSpec) -> None:
    """What is modelled of Megatron-Core's modules only."""
    trains = job.task == "train" and job.parallelism.tensor > 1
    if not trains:
        _check_heads(job.parallelism.tensor, spec)
    for name in ("context", "expert") if job.task == "serve" else ("pipeline", "context", "expert"):
        if getattr(job.parallelism, name) > 1:
            raise NotModelled(
                f"{name} parallelism is modelled for training with implementation: megatron only", f"parallelism.{name}"
            )
    for field in MEGATRON_ONLY:
        if getattr(job.parallelism, field) != USUAL[field] and not (trains and field == "sequence"):
            raise Contradiction("only implementation: megatron has it: leave it out", f"parallelism.{field}")
    if trains and job.training.implementation != "torchtitan":
        check_tensor(job, spec)


HEADS = ("num_attention_heads", "decoder_attention_heads", "num_heads")
WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_intermediate_size", "decoder_ffn_dim")
"""Fields of specs that an engine divides among its ranks."""


def tensor_degrees(spec: ModelSpec) -> list[int]:
    """Tensor-parallel degrees that an engine can serve the model with, up to 64: which its heads and its feed-forward layers
    divide by; 1 for models without a cache."""
    text, kept = spec.language_model, spec.cache_layers
    heads = next((sizes[name] for name in HEADS if (sizes := vars(text)).get(name)), text.hidden_size)
    keys = next((layer.heads for layer in kept if layer.kind not in ("latent", "state")), heads)
    wide = [vars(text)[name] for name in WIDTHS if vars(text).get(name)]
    return [
        d
        for d in range(1, (min(heads, 64) if kept and not spec.embeds else 1) + 1)
        if heads % d == 0 and (keys % d == 0 or d % keys == 0) and all(width % d == 0 for width in wide)
    ]


def _check_heads(tensor: int, spec: ModelSpec) -> None:
    degrees, text = tensor_degrees(spec), spec.language_model
    if tensor in degrees:
        return
    if not isinstance(text, DecoderSpec) or not spec.cache_layers:
        raise NotModelled(f"tensor parallelism of {spec.model_type} models is not modelled yet", "parallelism.tensor")
    pipeline = f" or pipeline: {tensor}" if tensor <= text.num_hidden_layers else ""
    raise Contradiction(
        f"{text.num_attention_heads} attention heads ({text.num_key_value_heads} for keys and values) and a feed-forward size of "
        f"{text.intermediate_size} do not divide by {tensor}; use tensor: {', '.join(map(str, degrees))}{pipeline}",
        "parallelism.tensor",
    )


def tensor_shard(spec: DecoderSpec, degree: int) -> DecoderSpec:
    """What one tensor-parallel rank holds: its heads, its part of each feed-forward layer and of the vocabulary.

    Key heads are copied where there are fewer than ranks; the vocabulary is padded to a multiple of 64 per rank
    (vllm/model_executor/layers/vocab_parallel_embedding.py).
    """
    if degree == 1:
        return spec
    padded = -(-spec.vocab_size // 64) * 64
    return spec.model_copy(
        update={
            "num_attention_heads": spec.num_attention_heads // degree,
            "num_key_value_heads": max(1, spec.num_key_value_heads // degree),
            "intermediate_size": spec.intermediate_size // degree,
            "vocab_size": -(-padded // degree),
        }
    )
