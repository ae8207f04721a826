"""A training job as a run on a tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Bottleneck, Job, Training
from estimator.contract.job.adapter import PrefixTuning, PromptLearning
from estimator.contract.job.training import SENSING
from estimator.families import build_model, torchtitan
from estimator.families.build import Builder
from estimator.families.heads import Batch, CausalLM, FusedHead, Model, takes_chunks, takes_cut, takes_shifts
from estimator.families.kernels import Kernels, in_float8, kernels
from estimator.families.kv_cache import PassingCache
from estimator.families.layers import Checkpointing
from estimator.families.llama import LlamaSpec
from estimator.families.protocols import Cache
from estimator.families.spec import ModelSpec
from estimator.parallel.offloading import offloads
from estimator.parallel.strategies import Feature
from estimator.parallel.topology import Topology
from estimator.parallel.torchtitan import TorchtitanFsdp2
from estimator.parallel.torchtitan_checks import check_torchtitan
from estimator.tape import dtypes
from estimator.tape.collectives import Group
from estimator.tape.dtypes import BY_NAME
from estimator.tape.gpu import AMPERE, Gpu
from estimator.tape.host import with_host
from estimator.tape.tape import Tape
from estimator.training import badam, prompts
from estimator.training.adapters import adapter, check_applied, check_gathered
from estimator.training.attention import check_attention
from estimator.training.bottleneck import bottleneck
from estimator.training.evaluation import evaluation
from estimator.training.float8 import check_float8
from estimator.training.generation import Writer, caches, writes, written_before
from estimator.training.gradients import keeping
from estimator.training.methods import Method
from estimator.training.objectives import objective
from estimator.training.objectives.dropout import without_dropout
from estimator.training.objectives.ppo import Ppo
from estimator.training.objectives.refusals import refuse
from estimator.training.optimizers import Optimizer, optimizer
from estimator.training.optimizers.base import alike, flattened
from estimator.training.overrides import precision_of
from estimator.training.padding import batch_mask
from estimator.training.partial import Part, check, part
from estimator.training.prefix import LayerPrefix, layer_prefixes, prefixed
from estimator.training.pruning import Pruning, masks
from estimator.training.pruning import check as check_pruned
from estimator.training.quantized_layers import quantization
from estimator.training.recipes import Recipe
from estimator.training.recomputation import checkpointing, offloading
from estimator.training.scaling import scaler
from estimator.training.sharding_choice import clipping_of, sharding_of, shards
from estimator.training.step import Step, train

AROUND_A_STEP: tuple[tuple[str, bool, Feature], ...] = (
    ("reentrant_checkpointing", True, "reentrant_checkpointing"),
    ("zero_grad_to_none", False, "kept_gradients"),
)
"""Settings of what happens around a step, the value that turns something on, and what that is."""


def trace_training(job: Job, spec: ModelSpec, topology: Topology, gpu: Gpu = AMPERE, unrolled: bool = False) -> Builder:
    """One step of a job in transformers or torchtitan on a new tape; the builder has the tape and the parameters.

    `unrolled`: each layer by itself.
    """
    if job.training.implementation == "torchtitan":
        check_torchtitan(job, spec, topology)
    refuse(job, spec)
    job, spec = without_dropout(job, spec)
    training = job.training
    check_attention(job, spec, gpu)
    check_float8(job, spec, gpu)
    precision = precision_of(job, topology)
    recomputed = _recomputed(job, spec, topology)
    _check_step(training, topology, precision)
    tape = with_host(Tape(gpu)) if offloads(job) else Tape(gpu)
    tape.batch_mask = batch_mask(training, spec)
    tape.mask_given = tape.batch_mask != "none" or training.objective is not None
    spread = topology.tensor > 1 and training.implementation != "torchtitan"
    tape.positions_given = tape.batch_mask == "packed" or spread
    tape.begin("load")
    prefixes: list[LayerPrefix] = []
    written: list[PassingCache] = []
    if isinstance(training.adapter, PrefixTuning):
        tape.prefix = training.adapter.virtual_tokens
    build = Builder(
        tape,
        dtypes.float32 if training.upcast_unquantized == "all" else precision.weights,
        compute=BY_NAME[training.quantization_compute] if training.quantization_compute else precision.weights,
        norms=None if training.upcast_unquantized == "none" else dtypes.float32,
        attention=training.attention,
        kernels=_kernels(training),
        labels=training.labels or 2,
        checkpointing=recomputed,
        sharding=sharding_of(job, spec, topology, precision, tape),
        quantization=quantization(training, spec, topology.strategy, gpu, precision),
        whole=tuple(training.unquantized or ()),
        adapter=_adapter(training, spec, topology, precision),
        cache=_caches(job, spec, tape, prefixes, written),
        trained=part(training, spec),
        pruning=masks(training),
        shows_states=training.objective is not None and training.objective.type == "ppo",
        images=training.images,
        audio=training.audio,
        sequences=training.micro_batch_size,
        tokens=training.sequence_length,
        unrolled=unrolled,
    )
    if topology.strategy.flattens:
        check_gathered(training, precision.gathered)
    assert training.head is not None
    model = _torchtitan(job, spec, build) if training.implementation == "torchtitan" else build_model(spec, build, training.head)
    build.sharding.spread(model, [p for p in build.parameters if p.slot is None])
    fused = training.loss == "fused" and training.head in SENSING
    if (
        (training.loss == "chunked" and not takes_chunks(model))
        or (training.loss in ("shifted", "flash") and not takes_shifts(model))
        or (training.loss == "cut" and not takes_cut(model))
        or (fused and not isinstance(model, FusedHead))
    ):
        raise NotModelled(f"loss {training.loss} is not modelled for {spec.model_type} yet; write eager", "training.loss")
    if training.loss == "cut" and not gpu.at_least(AMPERE.exact):
        raise Contradiction("cut cross-entropy needs an Ampere GPU or newer; write chunked", "training.loss")
    if isinstance(training.adapter, PrefixTuning):
        model = prefixed(training.adapter, model, build, prefixes, spec)
    elif isinstance(training.adapter, PromptLearning):
        model = prompts.prompted(training.adapter, model, build, spec)
    elif training.adapter and not isinstance(training.adapter, Bottleneck):
        check_applied(training.adapter, build, spec, topology.strategy)
    if isinstance(build.pruning, Pruning):
        check_pruned(build, build.pruning)
    if isinstance(build.trained, Part):
        check(build, build.trained)
    autocast = precision.compute if precision.autocast or training.autocast else None
    writer = None
    if written:
        assert isinstance(model, CausalLM)
        alone = training.adapter or (training.objective and training.objective.type == "ppo")
        writer = Writer(tape, model, written, None if alone else autocast, sampled=training.objective is not None)
    between, after = evaluation(job, build, model, writer, autocast) or written_before(writer, training), None
    model = objective(job, spec, build, model, autocast, writer)
    if isinstance(model, Ppo):
        between, after = model.write, model.after
    clipping = clipping_of(job, topology, spec, tape)
    if clipping and isinstance(model, torchtitan.Trained):
        clipping = keeping(clipping, model.kept)
    batch = Batch(training.micro_batch_size, training.sequence_length, training.target_length or training.sequence_length)
    step = Step(
        batch,
        training.gradient_accumulation_steps,
        None if training.objective else autocast,
        clip=clipping,
        keeps_gradients=not training.zero_grad_to_none,
        widens=training.autocast and training.transformers_release != "5",
        offloads=job.offload.activations != "none" and not recomputed.recomputes,
        in_backward=training.optimizer_in_backward,
        scaler=scaler(training, precision, build.parameters, shards(job, topology)),
        between=between,
        after=after,
    )
    train(build, model, _optimizer(job, topology, precision, build), step)
    return build


def _recomputed(job: Job, spec: ModelSpec, topology: Topology) -> Checkpointing:
    """How layers are recomputed. Raises `InvalidJob` and `NotModelled` for what does not go with the model or the strategy."""
    training = job.training
    recomputed = replace(checkpointing(training, spec.depth, topology.strategy), by_position=spec.by_position)
    if job.offload.activations != "none":
        recomputed = offloading(recomputed, job, topology)
    if recomputed.recomputes and not spec.recomputed:
        where = "training.activation_checkpointing"
        raise Contradiction(f"transformers' {spec.model_type} has no gradient checkpointing: write none", where)
    if recomputed.reentrant and recomputed.recomputes and spec.unasked_embeddings and training.adapter:
        raise Contradiction(
            f"what the decoder of {spec.model_type} begins with requires no gradients where it is frozen: torch recomputes"
            " nothing of it with re-entrance then, and finds nothing to differentiate: leave it out",
            "training.reentrant_checkpointing",
        )
    if recomputed.reentrant and recomputed.recomputes and spec.differentiated_once:
        raise Contradiction(
            f"torch stops: what the layers of {spec.model_type} share would be differentiated once for each layer; leave it out",
            "training.reentrant_checkpointing",
        )
    if recomputed.segment and "checkpoints_of_segments" not in topology.strategy.models:
        raise NotModelled(
            f"segments of several layers are not modelled under {topology.strategy} yet; use full or {{every: k}}",
            "training.activation_checkpointing",
        )
    return recomputed


def _check_step(training: Training, topology: Topology, precision: Recipe) -> None:
    """Raise `NotModelled` for what happens around a step under some strategies and precisions only."""
    for name, value, feature in AROUND_A_STEP:
        if getattr(training, name) == value and feature not in topology.strategy.models:
            raise NotModelled(f"{name}: {str(value).lower()} is not modelled under {topology.strategy} yet", f"training.{name}")
        if getattr(training, name) == value and precision.summed and name != "reentrant_checkpointing":
            raise NotModelled(f"{name}: {str(value).lower()} is not modelled with {training.precision} yet", f"training.{name}")
    if training.gradient_clipping and precision.summed:
        raise NotModelled(f"gradient_clipping: true is not modelled with {training.precision} yet", "training.gradient_clipping")


def _torchtitan(job: Job, spec: ModelSpec, build: Builder) -> Model:
    assert isinstance(spec, LlamaSpec)
    training, alone = job.training, not isinstance(build.sharding, TorchtitanFsdp2)
    tensor = Group("tensor", job.parallelism.tensor)
    return torchtitan.Trained(spec, build, training.sequence_length, training.gradient_accumulation_steps, alone, tensor)


def _caches(
    job: Job, spec: ModelSpec, tape: Tape, prefixes: list[LayerPrefix], written: list[PassingCache]
) -> Callable[[], Cache] | None:
    """What attention layers remember: a prefix, or what the model writes."""
    if tape.prefix:
        return layer_prefixes(tape, prefixes)
    if not writes(job, spec):
        return None
    return caches(tape, spec, written)


def _kernels(training: Training) -> Kernels:
    release = "4.57" if isinstance(training.adapter, Bottleneck) else training.transformers_release
    found = kernels(training.implementation, training.loss, release)
    return in_float8(found, training.float8) if training.float8 else found


def _adapter(training: Training, spec: ModelSpec, topology: Topology, precision: Recipe) -> Method | None:
    if isinstance(training.adapter, Bottleneck):
        return bottleneck(training.adapter, training, spec, topology.strategy, precision.weights)
    if isinstance(training.adapter, PromptLearning):
        prompts.refuse(training.adapter, training, spec, topology.strategy)
        return prompts.frozen(training.adapter)
    return adapter(training.adapter, training, spec, topology.strategy) if training.adapter else None


def _optimizer(job: Job, topology: Topology, precision: Recipe, build: Builder) -> Optimizer:
    """The optimizer of a job. DeepSpeed's on the host counts its steps in Python; on NVMe, its states are in files."""
    training = job.training
    weights = build.layers_matrices, frozenset(f"{name}.weight" for name in build.embeddings)
    if topology.strategy.stage and offloads(job):
        found = optimizer(training.model_copy(update={"optimizer_implementation": "foreach"}), *weights)
        return replace(found, kept=alike(0)) if job.offload.optimizer == "nvme" else found
    found = optimizer(training, *weights)
    if topology.strategy.stage:
        found = replace(found, step=flattened(found.step))
    if badam.asks(job):
        return badam.in_groups(found)
    if precision.summed and training.optimizer in ("adamw", "adam"):
        return replace(found, kept=alike(2))  # Apex's and Transformer Engine's FusedAdam count steps on the host
    return found
