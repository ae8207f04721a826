"""What would take less, for a job that does not fit: the settings behind the largest parts of its peak."""

from __future__ import annotations

from estimator.answer import Memory
from estimator.job import Job
from estimator.parallel.strategies import DDP, strategy_of

PARTS = 2
"""How many of the largest parts are spoken of."""

_NARROW = "training.optimizer adamw-8bit, whose states take two bytes per parameter"


def advice(job: Job, memory: Memory) -> list[str]:
    """A sentence for each of the largest parts at the peak, the largest first; whether it is enough, another question says."""
    largest = sorted(memory.at_peak, key=lambda part: -memory.at_peak[part])[:PARTS]
    about = _of_training if job.task == "train" else _of_serving
    said = [f"{part.replace('_', ' ')}: {about(part, job)}" for part in largest]
    training = job.training
    if (
        memory.peak_phase == "optimizer_step"
        and training.optimizer.startswith("adam")
        and (training.optimizer_implementation == "foreach")
    ):
        said.insert(0, "training.optimizer_implementation fused makes no temporaries for all parameters at once")
    return said


def _of_training(part: str, job: Job) -> str:
    training, sharded = job.training, strategy_of(job).gathers
    fewer = (
        "fewer or shorter sequences at a time (micro_batch_size, sequence_length; gradient_accumulation_steps makes up for it)"
    )
    more = "more GPUs to share them" if sharded else "parallelism.strategy fsdp2 over more GPUs, to share them"
    if part == "parameters":
        if training.adapter and not training.quantization:
            return f"training.quantization nf4 stores frozen weights in about a quarter of the bytes; or {more}"
        return more
    if part in ("gradients", "optimizer_states"):
        narrower = part == "optimizer_states" and training.optimizer in ("adamw", "adam")
        smaller = _NARROW + "; or " if narrower and not strategy_of(job).optimizers else ""
        return more if training.adapter else f"training.adapter, which trains a small part of the weights; or {smaller}{more}"
    switched = training.objective is None or not training.objective.several
    if part == "activations" and training.activation_checkpointing != "full" and switched:
        return f"training.activation_checkpointing full, which recomputes them; or {fewer}"
    if part == "communication_buffers" and strategy_of(job) is DDP and not job.parallelism.gradient_as_bucket_view:
        return "parallelism.gradient_as_bucket_view, which saves a copy of the gradients"
    return fewer


def _of_serving(part: str, job: Job) -> str:
    if part == "kv_cache":
        narrow = "serving.kv_cache q8_0; or " if job.serving.engine == "llama.cpp" and job.serving.kv_cache == "fp16" else ""
        return f"{narrow}a shorter serving.context, or less serving.concurrency"
    if job.serving.engine == "llama.cpp":
        smaller = (
            "a smaller kind in serving.weights, such as q4_k_m; or " if part == "parameters" else "a smaller serving.ubatch; or "
        )
        return f"{smaller}serving.gpu_layers, which leaves some in the host's memory"
    if part == "parameters":
        smaller = "serving.weights int8 or nf4-double; or " if job.serving.weights in ("bf16", "fp16", "fp32") else ""
        return f"{smaller}parallelism.tensor over more GPUs"
    return "a shorter serving.context"
