"""A training job with Megatron-Core as a run on a tape: one rank of one pipeline stage."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from estimator.errors import InvalidJob
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.layers import Checkpointing
from estimator.job import CheckpointForm, Job, Parallelism, Training
from estimator.megatron.ahead import PROJECTION
from estimator.megatron.config import Config, config
from estimator.megatron.execution import Execution, parts
from estimator.megatron.experts import Dispatch
from estimator.megatron.fp8 import Fp8
from estimator.megatron.linear import Split
from estimator.megatron.losses import LOSSES
from estimator.megatron.model import Place, Stage
from estimator.megatron.schedule import in_flight, train
from estimator.parallel.megatron import MainParameters
from estimator.parallel.topology import Topology
from estimator.specs.spec import ModelSpec
from estimator.tape.collectives import Group
from estimator.tape.tape import AMPERE, GRADIENT, Gpu, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers import optimizer
from estimator.training.optimizers.base import alike
from estimator.training.recipes import Recipe
from estimator.training.recomputation import checkpointing
from estimator.training.scaling import scaler

PRODUCTS = (".linear_", PROJECTION, "output_layer")
"""Parts of the names of what products add gradients of to the buffer by themselves."""


def trace_megatron(
    job: Job, spec: ModelSpec, topology: Topology, precision: Recipe, gpu: Gpu = AMPERE, unrolled: bool = False
) -> Builder:
    """Play one step of a job on a new tape, for a rank of `topology.stage`; the builder has the tape and the parameters."""
    training, found = job.training, config(spec)
    tape = Tape(gpu)
    tape.begin("load")
    place = placed(found, topology, job.parallelism, training, gpu)
    assert precision.summed is not None
    data = Group("data", topology.data * topology.context)
    experts = Group("expert_data", topology.expert_data)
    build = Builder(
        tape,
        precision.weights,
        checkpointing=_recomputed(training, len(place.layers)),
        sharding=MainParameters(
            tape, precision.summed, lambda name: experts if ".experts." in name else data, topology.strategy == "zero1"
        ),
        unrolled=unrolled,
    )
    batch = Batch(training.micro_batch_size, training.sequence_length, training.sequence_length)
    stage = Stage(found, build, place, batch, LOSSES[training.loss])
    dummies = _dummies(build)
    found_optimizer = replace(optimizer(training, frozenset(), frozenset()), kept=alike(2 if "adam" in training.optimizer else 0))
    steps = training.gradient_accumulation_steps
    train(
        build,
        stage,
        found_optimizer,
        Group("pipeline", topology.pipeline),
        in_flight(topology.stage, topology.pipeline, steps),
        steps,
        scaler(training, precision, build.parameters)(tape),
    )
    del dummies
    return build


def placed(found: Config, topology: Topology, asked: Parallelism, training: Training, gpu: Gpu) -> Place:
    """Where the ranks of `topology.stage` are."""
    layers = stages(found, topology.pipeline, asked)
    split = Split(Group("tensor", topology.tensor), bool(asked.sequence))
    last = topology.stage == topology.pipeline - 1
    dispatch = Dispatch(
        Group("expert", topology.expert),
        Group("expert_tensor", topology.expert_tensor),
        training.expert_capacity_factor,
        training.expert_imbalance,
    )
    how = Execution(_fp8(training, gpu), parts(training.activation_checkpointing))
    return Place(
        layers[topology.stage],
        topology.stage == 0,
        last,
        split,
        Group("context", topology.context),
        dispatch,
        how,
        training.mtp_num_layers or 0,
        training.activation_checkpointing == "full",
    )


def stages(found: Config, count: int, asked: Parallelism) -> list[range]:
    """The layers of each of so many pipeline stages."""
    layers = len(found.sparse)
    if asked.pipeline_layers is None:
        if layers % count:
            raise InvalidJob(
                f"{layers} layers do not divide by {count} stages; use pipeline: "
                f"{', '.join(str(n) for n in range(1, layers + 1) if layers % n == 0)}, or pipeline_layers",
                "parallelism.pipeline",
            )
        return [range(i, i + layers // count) for i in range(0, layers, layers // count)]
    given = asked.pipeline_layers
    if len(given) != count or sum(given) != layers:
        raise InvalidJob(
            f"{len(given)} stages with {sum(given)} layers in all are not the {count} stages and {layers} layers there are",
            "parallelism.pipeline_layers",
        )
    return [range(end - each, end) for each, end in zip(given, accumulate(given), strict=True)]


def candidates(found: Config, topology: Topology, asked: Parallelism) -> list[int]:
    """The stages one of which needs most: of those with the same layers the first, which holds most micro-batches."""
    seen: dict[object, int] = {}
    for i, layers in enumerate(stages(found, topology.pipeline, asked)):
        kind = tuple(found.sparse[layer] for layer in layers), i == 0, i == topology.pipeline - 1
        seen.setdefault(kind, i)
    return list(seen.values())


def _recomputed(training: Training, layers: int) -> Checkpointing:
    """Megatron-Core recomputes with re-entrance (core/tensor_parallel/random.py, `CheckpointFunction`)."""
    asked = training.activation_checkpointing
    if parts(asked):
        return Checkpointing()
    if isinstance(asked, CheckpointForm) and asked.uniform:
        if layers % asked.uniform:
            raise InvalidJob(
                f"the {layers} layers of a stage are no runs of {asked.uniform}", "training.activation_checkpointing.uniform"
            )
        return Checkpointing(segment=asked.uniform, reentrant=True)
    return replace(checkpointing(training, layers), reentrant=True)


def _fp8(training: Training, gpu: Gpu) -> Fp8 | None:
    """How products in fp8 are scaled. Data centres' Blackwell multiplies in any layout (`is_non_tn_fp8_gemm_supported`)."""
    asked = training.fp8
    if asked is None:
        return None
    turns = not ((10, 0) <= gpu.capability < (12, 0) or gpu.capability >= (13, 0))
    return Fp8(asked.recipe, turns, asked.param_gather, asked.amax_history_len)


def _dummies(build: Builder) -> list[Tensor]:
    """What autograd gets for a weight's gradient that a product has added to the buffer: one tensor per shape, kept for good."""
    products = [p.tensor for p in build.parameters if p.name.endswith(".weight") and any(part in p.name for part in PRODUCTS)]
    shapes = dict.fromkeys(weight.shape[-2:] for weight in products)
    with build.tape.counting(GRADIENT):
        return [empty(build.tape, shape, build.dtype, "dummy_wgrad") for shape in shapes]
