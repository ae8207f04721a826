"""Defaults that depend on the model and the hardware."""

from __future__ import annotations

from typing import Any

from estimator.families import heads
from estimator.job import Host, Job, Parallelism, Training
from estimator.job.adapter import PrefixTuning, PromptLearning
from estimator.job.optimizer import IMPLEMENTATIONS, RANKS
from estimator.parallel.strategies import STRATEGIES, strategy_of
from estimator.serving.llamacpp import UBATCH
from estimator.specs.spec import ModelSpec


def settled(job: Job, spec: ModelSpec) -> Job:
    """The job with the usual implementation of its optimizer, lengths that the model has positions for, its way of attention, and
    a strategy.

    Only where none were given. Raises `InvalidJob` for an implementation of attention that the model does not have.
    """
    most = spec.longest_sequence
    if most and job.task == "train" and isinstance(job.training.adapter, PromptLearning):
        most = max(1, most - job.training.adapter.virtual_tokens)
    training, serving, parallelism = job.training, job.serving, job.parallelism
    if training.implementation == "megatron" and job.task == "train":
        parallelism = _spread(parallelism)
        training = _of_megatron(training, parallelism)
    if training.optimizer_implementation is None:
        training = training.model_copy(update={"optimizer_implementation": IMPLEMENTATIONS[training.optimizer][0]})
    if training.optimizer_rank is None and training.optimizer in RANKS:
        training = training.model_copy(update={"optimizer_rank": RANKS[training.optimizer]})
    if training.lengths:
        training = training.model_copy(update={"sequence_length": training.longest})
    elif "sequence_length" not in training.model_fields_set and most and training.sequence_length > most:
        training = training.model_copy(update={"sequence_length": most})
    if "loss" not in training.model_fields_set and training.implementation == "liger":
        training = training.model_copy(update={"loss": "fused"})
    if "attention" not in training.model_fields_set and training.attention not in spec.attentions:
        training = training.model_copy(update={"attention": spec.attentions[0]})
    if "activation_checkpointing" not in training.model_fields_set and isinstance(training.adapter, PrefixTuning):
        training = training.model_copy(update={"activation_checkpointing": "none"})
    if "activation_checkpointing" not in training.model_fields_set and training.objective and training.objective.type == "ppo":
        training = training.model_copy(update={"activation_checkpointing": "none"})
    if training.target_length is None and spec.most_targets:
        training = training.model_copy(update={"target_length": min(training.sequence_length, spec.most_targets)})
    if training.objective and training.objective.type == "reward":
        scored = {"head": training.head or "sequence-classification", "labels": training.labels or 1}
        training = training.model_copy(update=scored)
    if training.head is None:
        training = training.model_copy(update={"head": next(iter(heads(spec.model_type)))})
    if training.labels is None and training.head and training.head.endswith("classification"):
        training = training.model_copy(update={"labels": 2})
    if training.objective and training.objective.reference is None and training.objective.type in ("dpo", "kto", "ppo"):
        reference = training.objective.model_copy(update={"reference": "adapter" if training.adapter else "model"})
        training = training.model_copy(update={"objective": reference})
    if serving.prompt_length and serving.output_length and "context" not in serving.model_fields_set:
        serving = serving.model_copy(update={"context": serving.prompt_length + serving.output_length})
    elif "context" not in serving.model_fields_set and most and serving.context > most:
        serving = serving.model_copy(update={"context": most})
    if serving.engine == "llama.cpp":
        cache = serving.kv_cache if "kv_cache" in serving.model_fields_set else "fp16"
        filled = {"ubatch": serving.ubatch or UBATCH, "flash_attention": serving.flash_attention is not False, "kv_cache": cache}
        serving = serving.model_copy(update=filled)
    if job.task == "serve":
        prompt, output = serving.lengths
        serving = serving.model_copy(update={"prompt_length": prompt, "output_length": output})
    if parallelism.data is None:
        ranks = parallelism.tensor * parallelism.pipeline * parallelism.context
        parallelism = parallelism.model_copy(update={"data": max(1, job.hardware.gpus * job.hardware.nodes // ranks)})
    if parallelism.strategy is None:
        several = job.task == "train" and (parallelism.data or 1) * parallelism.context > 1
        usual = "zero1" if training.implementation == "megatron" else "fsdp2"
        parallelism = parallelism.model_copy(update={"strategy": usual if several else "none"})
    if STRATEGIES[parallelism.strategy or "none"].replicated and parallelism.replicas is None and job.hardware.nodes > 1:
        parallelism = parallelism.model_copy(update={"replicas": job.hardware.nodes})
    splits = training.implementation == "megatron" or parallelism.tensor > 1
    if parallelism.sequence is None and splits and job.task == "train":
        parallelism = parallelism.model_copy(update={"sequence": parallelism.tensor > 1})
    job = job.model_copy(update={"training": training, "serving": serving, "parallelism": parallelism})
    return job if job.task == "serve" else job.model_copy(update={"host": _host(job)})


def _host(job: Job) -> Host:
    """How a job loads and what it saves. Of sharded models the first rank of a node loads (`cpu_ram_efficient_loading`, which
    `accelerate launch` turns on for FSDP); quantized weights go to their GPU. Megatron's and torchtitan's are made there, and
    saved in parts."""
    in_parts = job.training.implementation in ("megatron", "torchtitan")
    sharded = strategy_of(job).gathers
    loading = "device" if job.training.quantization or in_parts else "first" if sharded else "each"
    save = "adapter" if job.training.adapter else "sharded" if in_parts else "model"
    return job.host.model_copy(update={"loading": job.host.loading or loading, "save": job.host.save or save})


def _spread(parallelism: Parallelism) -> Parallelism:
    """A pipeline's schedule, and the chunks that it needs on each rank (two, as torchtitan has it, where several may be);
    a ring, where ranks share a sequence."""
    changes: dict[str, Any] = {}
    if parallelism.context > 1:
        changes["context_exchange"] = parallelism.context_exchange or "p2p"
    if parallelism.pipeline > 1:
        schedule = parallelism.pipeline_schedule or ("1f1b" if (parallelism.model_chunks or 1) == 1 else "interleaved")
        several = 1 if schedule in ("1f1b", "gpipe", "zero-bubble") else 2
        changes |= {"pipeline_schedule": schedule, "model_chunks": parallelism.model_chunks or several}
    return parallelism.model_copy(update=changes)


def _of_megatron(training: Training, parallelism: Parallelism) -> Training:
    """Its own precision, and micro-batches that fill a pipeline."""
    stages = parallelism.pipeline * (2 if parallelism.pipeline_schedule in ("zbv", "dualpipev", "dualpipe") else 1)
    changes: dict[str, Any] = {}
    if "precision" not in training.model_fields_set:
        changes["precision"] = "megatron-bf16"
    if "gradient_accumulation_steps" not in training.model_fields_set and parallelism.pipeline > 1:
        changes["gradient_accumulation_steps"] = stages
    return training.model_copy(update=changes)
