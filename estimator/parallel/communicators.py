"""Which groups of a job's ranks exchange on the GPU, as its tape has it, so that NCCL makes a communicator of each."""

from __future__ import annotations

from collections import defaultdict

from estimator.contract.job import Job
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.strategies import ZERO1
from estimator.parallel.topology import Topology
from estimator.runtime.nccl import Communicator
from estimator.tape.tape import Tape

SMALL = "all_gather"
"""The operation that stands for sums of a few numbers: they need no more than a ring."""


def communicators(tape: Tape, job: Job, spec: ModelSpec, place: Topology) -> list[Communicator]:
    """One for each group on the tape; torch makes it at the group's first exchange, whoever else has one of the same ranks.

    Megatron sums the norm of gradients over all ranks, or without its distributed optimizer over those that share a model
    (core/optimizer/clip_grads.py), and a tied embedding's gradient over the first and the last stage
    (core/distributed/finalize_model_grads.py). A server's tape has no exchanges: there each layer sums over the ranks of tensor
    parallelism.
    """
    found: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for one in tape.traffic:
        if one.ranks > 1:
            found[one.group, one.ranks].add(one.operation)
    if job.task == "serve" and place.tensor > 1:
        found["tensor", place.tensor].add("all_reduce")
    if job.task == "train" and job.training.implementation == "megatron":
        model = place.tensor * place.pipeline
        if (norm := place.gpus if place.strategy is ZERO1 else model) > 1:
            found["gradient_norm", norm].add(SMALL)
        if place.pipeline > 1 and isinstance(spec, DecoderSpec) and spec.tie_word_embeddings:
            found["embedding", 2].add("all_reduce")
    steps = _steps(job, place)
    per_node = job.hardware.gpus
    return [
        Communicator(name, ranks, min(ranks, max(1, per_node // steps.get(name, 1))), frozenset(operations))
        for (name, ranks), operations in sorted(found.items())
    ]


def _steps(job: Job, place: Topology) -> dict[str, int]:
    """How far apart a group's ranks are; neighbours, unless they are named here.

    Megatron numbers ranks of tensor parallelism first, then context, data and pipeline (core/parallel_state.py, `order`); torch's
    meshes have the shards of HSDP, and DeepSpeed's groups the GPUs of a node, beside each other.
    """
    return {
        "data": place.tensor,
        "context": place.tensor,
        "expert": place.expert_tensor,
        "expert_data": place.expert * place.expert_tensor,
        "pipeline": place.gpus // place.pipeline,
        "embedding": place.gpus // place.pipeline * (place.pipeline - 1),
        "replicas": place.data // (job.parallelism.replicas or 1),
        "nodes": job.hardware.gpus,
    }
