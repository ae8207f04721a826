"""A training job with Megatron-Core as a run on a tape: one rank of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from estimator.contract.errors import Contradiction
from estimator.contract.job import CheckpointForm, Job, Parallelism, Training
from estimator.contract.job.adapter import Lora
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.layers import Checkpointing
from estimator.families.spec import ModelSpec
from estimator.megatron.attention import Context
from estimator.megatron.checks import check
from estimator.megatron.config import Config, config
from estimator.megatron.execution import CORE_ATTENTION, Execution, parts
from estimator.megatron.experts import Dispatch
from estimator.megatron.fp8 import Fp8
from estimator.megatron.linear import Later, Split
from estimator.megatron.lora import Adapters
from estimator.megatron.losses import LOSSES
from estimator.megatron.model import Place, Stage, workspaces
from estimator.megatron.mtp import PROJECTION
from estimator.megatron.schedule import Rounds
from estimator.megatron.step import train
from estimator.parallel.bf16_optimizer import PRECISION as BF16_OPTIMIZER
from estimator.parallel.bf16_optimizer import Bf16Optimizer
from estimator.parallel.megatron import MainParameters
from estimator.parallel.megatron_offload import OffloadedMainParameters
from estimator.parallel.offloading import offloads
from estimator.parallel.pipeline import pipeline_of
from estimator.parallel.schedules import FORWARD, INPUT, SPLIT, Action, Pipeline, waiting
from estimator.parallel.strategies import ZERO1
from estimator.parallel.topology import Topology
from estimator.tape.collectives import Group
from estimator.tape.gpu import AMPERE, Gpu
from estimator.tape.host import with_host
from estimator.tape.tape import GRADIENT, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers import optimizer
from estimator.training.optimizers.base import alike
from estimator.training.overrides import precision_of
from estimator.training.recomputation import checkpointing
from estimator.training.scaling import scaler

PRODUCTS = (".linear_", PROJECTION, "output_layer")
"""Parts of the names of what products add gradients of to the buffer by themselves."""


def trace_megatron(job: Job, spec: ModelSpec, topology: Topology, gpu: Gpu = AMPERE, unrolled: bool = False) -> Builder:
    """One step of a job on a new tape, for a rank of `topology.stage`; the builder has the tape and the parameters.

    Raises `InvalidJob` and `NotModelled` for what Megatron-Core does not have or is not modelled.
    """
    check(job, spec, topology, gpu)
    precision = precision_of(job, topology)
    training, found = job.training, _asked(config(spec), job.training)
    pipeline = pipeline_of(job).shortened()
    tape = with_host(Tape(gpu)) if offloads(job) else Tape(gpu)
    tape.begin("load")
    later = Later()
    places = placed(found, topology, pipeline, job, gpu, later)
    assert precision.summed is not None
    data = Group("data", topology.data * topology.context)
    experts = Group("expert_data", topology.expert_data)
    shared = (
        precision.summed,
        lambda name: experts if ".experts." in name else data,
        topology.strategy is ZERO1,
        Group("pipeline", 2 if pipeline.schedule == "dualpipe" else 1),
    )
    kind = Bf16Optimizer if training.precision == BF16_OPTIMIZER else MainParameters
    sharding = OffloadedMainParameters(tape, tape.host, *shared) if tape.host is not None else kind(tape, *shared)
    build = Builder(
        tape,
        precision.weights,
        checkpointing=_recomputed(training, len(places[0].layers)),
        sharding=sharding,
        trained=adapters(training),
        unrolled=unrolled,
    )
    batch = Batch(training.micro_batch_size, training.sequence_length, training.sequence_length)
    labels = ["layers"] if len(places) == 1 else [f"chunks[{i}].layers" for i in range(len(places))]
    chunks = [
        Stage(found, build, place, batch, LOSSES[training.loss], label) for place, label in zip(places, labels, strict=True)
    ]
    held = workspaces(tape, found.mixture is not None and any(found.sparse[i] for place in places for i in place.layers))
    dummies = _dummies(build)
    run = build.root(Stage.forward)
    found_optimizer = replace(optimizer(training, frozenset(), frozenset()), kept=alike(2 if "adam" in training.optimizer else 0))
    loss_scaler = scaler(training, precision, build.parameters)(tape)
    rounds = Rounds(chunks, run, pipeline, pipeline.actions(topology.stage), loss_scaler, later)
    train(build, rounds, found_optimizer, unrolled)
    del dummies, held
    return build


def adapters(training: Training) -> Adapters | None:
    """LoRA, of a job that has it."""
    asked = training.adapter
    return Adapters(asked.rank, asked.dropout) if isinstance(asked, Lora) else None


def _asked(found: Config, training: Training) -> Config:
    """The config with the way of attention that the job has."""
    if found.classic is None:
        return found
    selective = CORE_ATTENTION in parts(training.activation_checkpointing)
    return replace(found, classic=replace(found.classic, eager=training.attention == "eager", selective=selective))


def placed(found: Config, topology: Topology, pipeline: Pipeline, job: Job, gpu: Gpu, later: Later) -> list[Place]:
    """Where the chunks of the ranks of `topology.stage` are."""
    asked, training = job.parallelism, job.training
    layers = stages(found, pipeline, asked)
    split = Split(Group("tensor", topology.tensor), bool(asked.sequence), later)
    context = Context(Group("context", topology.context), asked.context_exchange != "a2a")
    dispatch = Dispatch(
        Group("expert", topology.expert),
        Group("expert_tensor", topology.expert_tensor),
        training.expert_capacity_factor,
        training.expert_imbalance,
    )
    how = Execution(_fp8(training, gpu), parts(training.activation_checkpointing), adapters(training))
    ahead = training.mtp_num_layers or 0, training.activation_checkpointing == "full"
    return [
        Place(i, layers[i], i == 0, i == pipeline.stages - 1, split, context, dispatch, how, *ahead)
        for i in pipeline.held(topology.stage)
    ]


def stages(found: Config, pipeline: Pipeline, asked: Parallelism) -> list[range]:
    """The layers of each part of the model."""
    layers, count = len(found.sparse), pipeline.stages
    if asked.pipeline_layers is None:
        if layers % count:
            chunks = count // pipeline.ranks
            of = f"{count} parts, {chunks} on each rank" if chunks > 1 else f"{count} stages"
            raise Contradiction(
                f"{layers} layers do not divide by {of}; use pipeline: "
                f"{', '.join(str(n) for n in range(1, layers + 1) if layers % (n * chunks) == 0) or 1}, or pipeline_layers",
                "parallelism.pipeline",
            )
        return [range(i, i + layers // count) for i in range(0, layers, layers // count)]
    given = asked.pipeline_layers
    if len(given) != count or sum(given) != layers:
        raise Contradiction(
            f"{len(given)} stages with {sum(given)} layers in all are not the {count} stages and {layers} layers there are",
            "parallelism.pipeline_layers",
        )
    return [range(end - each, end) for each, end in zip(given, accumulate(given), strict=True)]


def kinds(found: Config, pipeline: Pipeline, asked: Parallelism) -> list[tuple[object, ...]]:
    """What the chunks of each rank have, and whether it passes on to itself; ranks of one kind compute and exchange the same."""
    layers, last = stages(found, pipeline, asked), pipeline.stages - 1
    each = [(tuple(found.sparse[i] for i in part), n == 0, n == last) for n, part in enumerate(layers)]
    turning = pipeline.ranks - 1 if pipeline.turns else None
    return [(rank == turning, *sorted(each[n] for n in pipeline.held(rank))) for rank in range(pipeline.ranks)]


def candidates(found: Config, pipeline: Pipeline, asked: Parallelism) -> list[int]:
    """The ranks one of which needs most: of those with the same layers the first, which holds most micro-batches; where weights'
    gradients wait, too, all that hold other numbers of either."""
    seen: dict[object, int] = {}
    for rank, kind in enumerate(kinds(found, pipeline, asked)):
        held = frozenset(_highest(pipeline.actions(rank))) if pipeline.schedule in SPLIT else None
        seen.setdefault((kind, held), rank)
    return list(seen.values())


def _highest(actions: list[Action]) -> set[tuple[int, int]]:
    """How many micro-batches wait for their backward passes, and for their weights' gradients, where no more of both do."""
    now = {
        (sum(n for (kind, _), n in each.items() if kind == FORWARD), sum(n for (kind, _), n in each.items() if kind == INPUT))
        for each in waiting(actions)
    }
    return {one for one in now if not any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in now)}


def _recomputed(training: Training, layers: int) -> Checkpointing:
    """Megatron-Core recomputes with re-entrance (core/tensor_parallel/random.py, `CheckpointFunction`)."""
    asked = training.activation_checkpointing
    if parts(asked):
        return Checkpointing()
    if isinstance(asked, CheckpointForm) and asked.uniform:
        if layers % asked.uniform:
            raise Contradiction(
                f"the {layers} layers of a stage are no runs of {asked.uniform}", "training.activation_checkpointing.uniform"
            )
        return Checkpointing(segment=asked.uniform, reentrant=True)
    return replace(checkpointing(training, layers), reentrant=True)


def _fp8(training: Training, gpu: Gpu) -> Fp8 | None:
    """How products in fp8 are scaled. Data centres' Blackwell multiplies in any layout (`is_non_tn_fp8_gemm_supported`)."""
    asked = training.fp8
    if asked is None:
        return None
    turns = not ((gpu.at_least((10, 0)) and not gpu.at_least((12, 0))) or gpu.at_least((13, 0)))
    return Fp8(asked.recipe, turns, asked.param_gather, asked.amax_history_len)


def _dummies(build: Builder) -> list[Tensor]:
    """What autograd gets for a weight's gradient that a product has added to the buffer: one tensor per shape, kept for good."""
    trained = [p for p in build.parameters if p.trainable and p.name.endswith(".weight")]
    products = [p.tensor for p in trained if any(part in p.name for part in PRODUCTS)]
    shapes = dict.fromkeys(weight.shape[-2:] for weight in products)
    with build.tape.counting(GRADIENT):
        return [empty(build.tape, shape, build.dtype, "dummy_wgrad") for shape in shapes]
