"""How a job's strategy shares a model among its ranks, and clips gradients that they share."""

from __future__ import annotations

from functools import partial

from estimator.errors import InvalidJob, NotModelled
from estimator.families.sharding import Sharding
from estimator.job import Job
from estimator.parallel.ddp import Ddp
from estimator.parallel.fsdp1 import Fsdp1
from estimator.parallel.fsdp2 import Fsdp2, Policy
from estimator.parallel.megatron import MainParameters
from estimator.parallel.optimizer_offload import OffloadedOptimizer
from estimator.parallel.tensor import TensorParallel, misplaced, whole
from estimator.parallel.tensor_fsdp2 import TensorFsdp2
from estimator.parallel.topology import Topology
from estimator.parallel.torchtitan import TorchtitanFsdp2, TorchtitanTensorFsdp2
from estimator.parallel.zero import Zero12
from estimator.parallel.zero3 import Zero3
from estimator.parallel.zero3_offload import OffloadedZero3
from estimator.parallel.zero_offload import OffloadedZero12
from estimator.parallel.zeropp import plus_plus
from estimator.specs.spec import DecoderSpec, ModelSpec
from estimator.tape.collectives import Group
from estimator.tape.tape import Tape
from estimator.training import badam
from estimator.training.fused_lora import ignores_adapters
from estimator.training.gradients import Clip, clip, clip_distributed, clip_sharded
from estimator.training.recipes import Recipe


def sharding_of(job: Job, spec: ModelSpec, topology: Topology, precision: Recipe, tape: Tape) -> Sharding:
    """The strategy of a training job; `InvalidJob` for settings that it does not have, `NotModelled` for what is not modelled."""
    world, strategy = topology.data, topology.strategy
    policy = Policy(precision.gathered, precision.reduced)
    by_lists = job.training.optimizer in ("adamw", "adam") and job.training.optimizer_implementation == "foreach"
    if strategy != "fsdp1" and not job.parallelism.backward_prefetch:
        raise InvalidJob("leave it out: only fsdp1 can do without prefetching", "parallelism.backward_prefetch")
    if precision.summed:
        if job.parallelism.gradient_as_bucket_view:
            raise InvalidJob("Megatron's gradients are its buffer already: leave it out", "parallelism.gradient_as_bucket_view")
        return MainParameters(tape, precision.summed, lambda _: Group("data", world), strategy == "zero1")
    if topology.tensor > 1:
        titan = job.training.implementation == "torchtitan"
        spread = TensorParallel(tape, topology.tensor, by_lists, _tied(spec), gathers=not titan)
        if strategy != "fsdp2":
            return spread
        return (TorchtitanTensorFsdp2 if titan else TensorFsdp2)(spread, *_of_fsdp2(job, topology, policy))
    if badam.asks(job):
        return badam.BlockCopies(tape)
    if strategy == "ddp":
        return Ddp(tape, world, job.parallelism.gradient_as_bucket_view)
    if strategy == "fsdp1":
        if not job.parallelism.reshard_after_forward:
            raise NotModelled("fsdp1 without resharding is not modelled yet; use fsdp2", "parallelism.reshard_after_forward")
        return Fsdp1(
            tape,
            world,
            policy,
            job.parallelism.backward_prefetch,
            ignores=ignores_adapters(job.training),
            around=job.training.transformers_release != "5",
        )
    if strategy == "fsdp2":
        kind = TorchtitanFsdp2 if job.training.implementation == "torchtitan" else Fsdp2
        return kind(tape, *_of_fsdp2(job, topology, policy))
    if strategy.startswith("zero") and tape.host is not None:
        return _offloaded(job, world, tape, tape.host)
    if strategy == "zero3":
        return Zero3(tape, world, foreach=by_lists, plus=plus_plus(job))
    if strategy in ("zero1", "zero2"):
        return Zero12(tape, world, int(strategy[-1]))
    if tape.host is not None:
        return OffloadedOptimizer(tape, tape.host, frees=job.offload.gradients == "cpu")
    return Sharding()


def _offloaded(job: Job, world: int, tape: Tape, host: Tape) -> Sharding:
    if job.parallelism.strategy == "zero3":
        return OffloadedZero3(tape, host, world, job.offload, plus_plus(job))
    stage, steps = int((job.parallelism.strategy or "")[-1]), job.training.gradient_accumulation_steps
    return OffloadedZero12(tape, host, world, stage, accumulated=steps > 1)


def _of_fsdp2(job: Job, topology: Topology, policy: Policy) -> tuple[int, Policy, bool, int, bool]:
    """The settings of `Fsdp2`."""
    asked = job.parallelism
    return shards(job, topology), policy, asked.reshard_after_forward, asked.replicas or 1, asked.gradient_sync


def shards(job: Job, topology: Topology) -> int:
    """Ranks among which FSDP2 splits a parameter."""
    return topology.data // (job.parallelism.replicas or 1) if topology.strategy == "fsdp2" else 1


def clipping_of(job: Job, topology: Topology, spec: ModelSpec) -> Clip | None:
    """How gradients are clipped, if they are."""
    if not job.training.gradient_clipping:
        return None
    tensor = Group("tensor", topology.tensor)
    if topology.strategy == "fsdp2":
        groups = [group for group in (Group("data", shards(job, topology)), tensor) if group.size > 1]
        return partial(clip_distributed, groups, lambda _: False, lambda p: tensor.size > 1 and whole(p))
    if tensor.size > 1:
        unplaced = partial(misplaced, tied=_tied(spec))
        return partial(clip_distributed, [tensor], unplaced, unplaced)
    return clip_sharded if topology.strategy == "fsdp1" else clip


def _tied(spec: ModelSpec) -> bool:
    return isinstance(spec, DecoderSpec) and spec.tie_word_embeddings
