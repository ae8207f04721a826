"""What is taken for granted of a step of Megatron-Core."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.job import Job
from estimator.contract.notes import Said
from estimator.parallel.bf16_optimizer import PRECISION as BF16_OPTIMIZER
from estimator.parallel.strategies import ZERO1
from estimator.parallel.topology import Topology


def of_megatron(job: Job, place: Topology) -> Iterator[Said]:
    """By what is divided among ranks."""
    yield Said(
        "software",
        "Megatron-Core 0.15 on Transformer Engine 2.11: fused norms, rotary embedding and SwiGLU, gradients added to one buffer",
        "training.implementation",
    )
    yield Said(
        "megatron-weights",
        "weights and gradients begin on the GPU; rows of the vocabulary are padded to 128 per tensor-parallel rank",
        "parallelism.tensor",
    )
    if place.strategy is ZERO1:
        whose = "DeepSpeed's BF16_Optimizer, with gradients in bf16 and in float32"
        whose = whose if job.training.precision == BF16_OPTIMIZER else "its distributed optimizer"
        text = f"{whose}: float32 weights and states in {place.data * place.context} parts"
        yield Said("strategy-zero1", text, "parallelism.strategy")
    if job.training.mtp_num_layers:
        text = "layers that predict further tokens are on the last stage; parameters are counted without them"
        yield Said("further-tokens", text, "training.mtp_num_layers")
    if job.training.fp8:
        yield Said(
            "fp8-layers",
            f"linear modules of the layers in fp8, {job.training.fp8.recipe}, as the source of Transformer Engine 2.11 has it; "
            "what they save for backward was held against no run",
            "training.fp8",
        )
    if job.parallelism.tp_comm_overlap:
        yield Said(
            "userbuffers",
            "userbuffers as Transformer Engine has them unasked, 12 of all tokens of a micro-batch outside torch; what torch "
            "needs the less for that is not taken off, about two of them",
            "parallelism.tp_comm_overlap",
        )
    if place.pipeline > 1:
        yield Said("pipeline-schedule", _schedule(job), "parallelism.pipeline_schedule")
    if place.context > 1:
        ring = "context parallelism in a ring (--cp-comm-type p2p); memory is that of its last rank"
        all_to_all = "context parallelism by all-to-all (--cp-comm-type a2a)"
        text = all_to_all if job.parallelism.context_exchange == "a2a" else ring
        yield Said("context-exchange", text, "parallelism.context_exchange")
    if place.expert > 1:
        text = "experts by all-to-all, with grouped products and fused permutation; the loss that balances them is counted"
        yield Said("expert-exchange", text, "parallelism.expert")


def _schedule(job: Job) -> str:
    """Of a pipeline."""
    asked = job.parallelism
    if asked.pipeline_schedule == "1f1b":
        return "pipeline 1F1B: a stage holds as many micro-batches as there are stages from it on"
    chunks = f"{asked.model_chunks} parts of the model on each rank" if (asked.model_chunks or 1) > 1 else "a part on each rank"
    if asked.pipeline_schedule == "interleaved":
        return (
            f"pipeline interleaved 1F1B, {chunks}; tensors are received while others are computed (--overlap-p2p-communication)"
        )
    return (
        f"pipeline {asked.pipeline_schedule}, {chunks}: not a schedule of Megatron-LM's, so tensors are passed on as in its 1F1B"
    )
