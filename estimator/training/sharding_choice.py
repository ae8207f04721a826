"""How a job's strategy shares a model among its ranks, and clips gradients that they share."""

from __future__ import annotations

from functools import partial

from estimator.contract.errors import Contradiction
from estimator.contract.job import Job
from estimator.families.sharding import Sharding
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.fsdp2 import Policy
from estimator.parallel.megatron import MainParameters
from estimator.parallel.strategies import ZERO1, Setup
from estimator.parallel.tensor import TensorParallel, misplaced, whole
from estimator.parallel.tensor_fsdp2 import TensorFsdp2
from estimator.parallel.topology import Topology
from estimator.parallel.torchtitan import TorchtitanFsdp2, TorchtitanTensorFsdp2
from estimator.tape import dtypes
from estimator.tape.collectives import Group
from estimator.tape.tape import OPTIMIZER_STATE, Tape
from estimator.tape.tensor import empty
from estimator.training import badam
from estimator.training.fused_lora import ignores_adapters
from estimator.training.gradients import Clip, clip, clip_distributed, clip_sharded
from estimator.training.recipes import Recipe


def sharding_of(job: Job, spec: ModelSpec, topology: Topology, precision: Recipe, tape: Tape) -> Sharding:
    """The sharding of a training job; `InvalidJob` for settings that its strategy does not have, `NotModelled` for what is not
    modelled."""
    strategy, asked, training = topology.strategy, job.parallelism, job.training
    by_lists = training.optimizer in ("adamw", "adam") and training.optimizer_implementation == "foreach"
    policy = Policy(precision.gathered, precision.reduced)
    if not strategy.flattens and not asked.backward_prefetch:
        raise Contradiction("leave it out: only fsdp1 can do without prefetching", "parallelism.backward_prefetch")
    if precision.summed:
        if asked.gradient_as_bucket_view:
            raise Contradiction(
                "Megatron's gradients are its buffer already: leave it out", "parallelism.gradient_as_bucket_view"
            )
        return MainParameters(tape, precision.summed, lambda _: Group("data", topology.data), strategy is ZERO1)
    setup = Setup(job, tape, topology.data, shards(job, topology), policy, by_lists, ignores_adapters(training))
    titan = training.implementation == "torchtitan"
    if topology.tensor > 1:
        spread = TensorParallel(tape, topology.tensor, by_lists, _tied(spec), gathers=not titan)
        if not strategy.dtensors:
            return spread
        return (TorchtitanTensorFsdp2 if titan else TensorFsdp2)(spread, *setup.of_fsdp2())
    if badam.asks(job):
        return badam.BlockCopies(tape)
    if titan and strategy.dtensors:
        return TorchtitanFsdp2(tape, *setup.of_fsdp2())
    return strategy.sharding(setup)


def shards(job: Job, topology: Topology) -> int:
    """Ranks among which FSDP2 splits a parameter."""
    return topology.data // (job.parallelism.replicas or 1) if topology.strategy.dtensors else 1


def clipping_of(job: Job, topology: Topology, spec: ModelSpec, tape: Tape) -> Clip | None:
    """How gradients are clipped, if they are; with what clipping keeps on the tape.

    DeepSpeed takes the norm of gradients in every step, and the factor is a part of what it unscales them by, in place
    (`unscale_and_clip_grads`): whether it clips changes no byte (tests/data/deepspeed.yaml).
    """
    if not job.training.gradient_clipping or topology.strategy.stage:
        return None
    tensor = Group("tensor", topology.tensor)
    if topology.strategy.dtensors:
        groups = [group for group in (Group("data", shards(job, topology)), tensor) if group.size > 1]
        return partial(clip_distributed, groups, lambda _: False, lambda p: tensor.size > 1 and whole(p))
    if tensor.size > 1:
        unplaced = partial(misplaced, tied=_tied(spec))
        return partial(clip_distributed, [tensor], unplaced, unplaced)
    if topology.strategy.flattens:
        with tape.counting(OPTIMIZER_STATE):
            return partial(clip_sharded, empty(tape, (), dtypes.float32, "zero"))
    return clip


def _tied(spec: ModelSpec) -> bool:
    return isinstance(spec, DecoderSpec) and spec.tie_word_embeddings
