"""How a job's GPUs are shared out: the degrees of each kind of parallelism, checked against the model and the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.errors import InvalidJob, NotModelled
from estimator.job import Job
from estimator.specs.spec import DecoderSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class Topology:
    """`data` and `tensor` multiply to all GPUs; `strategy` says what data-parallel ranks share."""

    gpus: int
    data: int
    tensor: int
    strategy: str

    @property
    def communicators(self) -> int:
        """NCCL communicators that each GPU takes part in."""
        return (self.data > 1) + (self.tensor > 1)


def topology(job: Job, spec: ModelSpec) -> Topology:
    """The topology of a settled job. Raises `InvalidJob` for degrees that do not fit each other, and `NotModelled`."""
    asked, gpus = job.parallelism, job.hardware.gpus * job.hardware.nodes
    _check_heads(asked.tensor, spec)
    for name in ("pipeline", "context", "expert"):
        if getattr(asked, name) > 1:
            raise NotModelled(f"{name} parallelism is not modelled yet", f"parallelism.{name}")
    if job.task == "train" and asked.tensor > 1:
        raise NotModelled("tensor parallelism is modelled for serving only yet", "parallelism.tensor")
    data, strategy = asked.data or 1, asked.strategy or "none"
    if data * asked.tensor != gpus:
        raise InvalidJob(
            f"data {data} x tensor {asked.tensor} are {data * asked.tensor} GPUs, but the hardware has {gpus}", "parallelism"
        )
    if strategy == "hsdp":
        raise NotModelled("hsdp is not modelled yet; fsdp1, fsdp2, ddp, zero1, zero2 and zero3 are", "parallelism.strategy")
    if strategy == "none" and data > 1 and job.task == "train":
        raise InvalidJob(
            f"{data} data-parallel GPUs need a strategy: ddp, zero1, zero2, zero3, fsdp1 or fsdp2", "parallelism.strategy"
        )
    return Topology(gpus, data, asked.tensor, strategy)


def tensor_degrees(spec: ModelSpec) -> list[int]:
    """Tensor-parallel degrees that the model's heads and feed-forward layers divide by, up to 64; 1 for other models."""
    if not isinstance(spec, DecoderSpec) or not spec.tensor_parallel:
        return [1]
    heads, keys = spec.num_attention_heads, spec.num_key_value_heads
    return [
        d
        for d in range(1, min(heads, 64) + 1)
        if heads % d == 0 and (keys % d == 0 or d % keys == 0) and spec.intermediate_size % d == 0
    ]


def _check_heads(tensor: int, spec: ModelSpec) -> None:
    degrees = tensor_degrees(spec)
    if tensor in degrees:
        return
    if not isinstance(spec, DecoderSpec) or not spec.tensor_parallel:
        raise NotModelled(f"tensor parallelism of {spec.model_type} models is not modelled yet", "parallelism.tensor")
    pipeline = f" or pipeline: {tensor}" if tensor <= spec.num_hidden_layers else ""
    raise InvalidJob(
        f"{spec.num_attention_heads} attention heads ({spec.num_key_value_heads} for keys and values) and a feed-forward size of "
        f"{spec.intermediate_size} do not divide by {tensor}; use tensor: {', '.join(map(str, degrees))}{pipeline}",
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
