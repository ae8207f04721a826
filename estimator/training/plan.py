"""A training job as a run on a tape."""

from __future__ import annotations

import math

from estimator import dtypes
from estimator.errors import InvalidJob, NotModelled
from estimator.families import build_model
from estimator.families.build import Builder, Sharding
from estimator.families.heads import Batch
from estimator.families.kernels import kernels
from estimator.families.layers import Checkpointing
from estimator.job import CheckpointForm, Job, Training
from estimator.parallel.ddp import Ddp
from estimator.parallel.fsdp2 import Fsdp2, Policy
from estimator.parallel.topology import Topology
from estimator.parallel.zero import Zero12
from estimator.parallel.zero3 import Zero3
from estimator.specs.spec import ModelSpec
from estimator.tape.tape import AMPERE, Gpu, Tape
from estimator.training.adapters import FUSED, Lora, lora
from estimator.training.evaluation import evaluation
from estimator.training.objectives import objective
from estimator.training.objectives.dropout import without_dropout
from estimator.training.objectives.refusals import refuse
from estimator.training.optimizers import optimizer
from estimator.training.quantization import STORAGE
from estimator.training.recipes import Recipe, recipe
from estimator.training.step import Step, train


def trace_training(job: Job, spec: ModelSpec, topology: Topology, gpu: Gpu = AMPERE, unrolled: bool = False) -> Builder:
    """Play one step of a job on a new tape; the builder has the tape and the parameters. `unrolled`: each layer by itself."""
    refuse(job, spec)
    job, spec = without_dropout(job, spec)
    training = job.training
    if training.attention not in spec.attentions:
        raise InvalidJob(
            f"transformers does not run {spec.model_type} in {training.attention}; write {' or '.join(spec.attentions)}",
            "training.attention",
        )
    precision = precision_of(job, topology)
    recomputed = checkpointing(training, spec.depth)
    for name, value in (("reentrant_checkpointing", True), ("gradient_clipping", True), ("zero_grad_to_none", False)):
        if getattr(training, name) == value and topology.strategy not in ("none", "ddp"):
            raise NotModelled(f"{name}: {str(value).lower()} is not modelled under {topology.strategy} yet", f"training.{name}")
    if recomputed.segment and topology.strategy == "fsdp2":
        raise NotModelled(
            "segments of several layers are not modelled under fsdp2 yet; use full or {every: k}",
            "training.activation_checkpointing",
        )
    tape = Tape(gpu)
    tape.begin("load")
    build = Builder(
        tape,
        dtypes.float32 if training.upcast_unquantized == "all" else precision.weights,
        compute=precision.weights,
        norms=None if training.upcast_unquantized == "none" else dtypes.float32,
        attention=training.attention,
        kernels=kernels(training.implementation, training.loss, training.transformers_release),
        labels=training.labels or 2,
        checkpointing=recomputed,
        sharding=_sharding(job, topology, precision, tape),
        quantization=STORAGE[training.quantization] if training.quantization else None,
        adapter=_adapter(training, spec),
        unrolled=unrolled,
    )
    assert training.head is not None
    model = build_model(spec, build, training.head)
    if training.adapter and not any(p.trainable for p in build.parameters):
        known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in build.linears))
        raise InvalidJob(
            f"no linear layer is called {' or '.join(training.adapter.targets)}; this model has {known}",
            "training.adapter.targets",
        )
    autocast = precision.autocast or (precision.weights if training.autocast else None)
    model = objective(job, spec, build, model, autocast)
    batch = Batch(training.micro_batch_size, training.sequence_length, training.target_length or training.sequence_length)
    step = Step(
        batch,
        training.gradient_accumulation_steps,
        None if training.objective else autocast,
        clipped=training.gradient_clipping,
        keeps_gradients=not training.zero_grad_to_none,
        widens=training.autocast and training.transformers_release != "5",
        between=evaluation(job, build, model, autocast),
    )
    train(build, model, optimizer(training.optimizer, training.optimizer_implementation), step)
    return build


def precision_of(job: Job, topology: Topology) -> Recipe:
    """The recipe that the job's precision names; `NotModelled` if there is none for its strategy."""
    found = recipe(job.training.precision, topology.strategy)
    if found is None:
        raise NotModelled(
            f"{job.training.precision} under {topology.strategy} is not modelled yet; use bf16-mixed, or 32-true",
            "training.precision",
        )
    return found


def checkpointing(training: Training, layers: int) -> Checkpointing:
    """Which layers are recomputed: `sqrt` is as many segments as the root of the number of layers."""
    asked, reentrant = training.activation_checkpointing, training.reentrant_checkpointing
    if asked == "none":
        return Checkpointing()
    if asked == "full":
        return Checkpointing(every=1, reentrant=reentrant)
    if asked == "sqrt":
        return Checkpointing(segment=math.ceil(layers / max(1, round(math.sqrt(layers)))), reentrant=reentrant)
    if isinstance(asked, CheckpointForm) and asked.every:
        return Checkpointing(every=min(asked.every, layers), reentrant=reentrant)
    if isinstance(asked, CheckpointForm) and asked.segments:
        if asked.segments > layers:
            raise InvalidJob(
                f"{asked.segments} segments are more than the model's {layers} layers",
                "training.activation_checkpointing.segments",
            )
        return Checkpointing(segment=math.ceil(layers / asked.segments), reentrant=reentrant)
    raise NotModelled("only none, full, sqrt, {every: k} and {segments: n} are modelled yet", "training.activation_checkpointing")


def _adapter(training: Training, spec: ModelSpec) -> Lora | None:
    asked = training.adapter
    if asked is None:
        return None
    parameters = FUSED.get(spec.model_type, {}) if training.transformers_release == "5" else {}
    return lora(asked, parameters, training.quantization, training.implementation == "fast-kernels")


def _sharding(job: Job, topology: Topology, precision: Recipe, tape: Tape) -> Sharding:
    world, strategy = topology.data, topology.strategy
    if strategy == "ddp":
        return Ddp(tape, job.parallelism.gradient_as_bucket_view)
    if strategy == "fsdp2":
        return Fsdp2(tape, world, Policy(precision.gathered, precision.reduced), job.parallelism.reshard_after_forward)
    if strategy == "zero3":
        training = job.training
        return Zero3(
            tape, world, foreach=training.optimizer.startswith("adam") and training.optimizer_implementation == "foreach"
        )
    if strategy in ("zero1", "zero2"):
        return Zero12(tape, world, int(strategy[-1]))
    return Sharding()
