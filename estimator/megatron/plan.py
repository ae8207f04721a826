"""A training job with Megatron-Core as a run on a tape: one rank of one pipeline stage."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from estimator.errors import InvalidJob, NotModelled
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.layers import Checkpointing
from estimator.job import Job, Parallelism, Training
from estimator.megatron.config import Config, config
from estimator.megatron.experts import Dispatch
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
from estimator.training.recipes import MEGATRON, Recipe
from estimator.training.recomputation import checkpointing
from estimator.training.scaling import scaler

OUTPUT = "output_layer"
SELECTIVE = "selective"


def trace_megatron(
    job: Job, spec: ModelSpec, topology: Topology, precision: Recipe, gpu: Gpu = AMPERE, unrolled: bool = False
) -> Builder:
    """Play one step of a job on a new tape, for a rank of `topology.stage`; the builder has the tape and the parameters."""
    training, found = job.training, _asked(config(spec), job.training)
    tape = Tape(gpu)
    tape.begin("load")
    place = placed(found, topology, job.parallelism, training)
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


def _asked(found: Config, training: Training) -> Config:
    """With the way of attention that was asked for."""
    if found.classic is None:
        return found
    selective = training.activation_checkpointing == SELECTIVE
    return replace(found, classic=replace(found.classic, eager=training.attention == "eager", selective=selective))


def placed(found: Config, topology: Topology, asked: Parallelism, training: Training) -> Place:
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
    return Place(layers[topology.stage], topology.stage == 0, last, split, Group("context", topology.context), dispatch)


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
    if training.activation_checkpointing == SELECTIVE:
        return Checkpointing()
    return replace(checkpointing(training, layers), reentrant=True)


def _dummies(build: Builder) -> list[Tensor]:
    """What autograd gets for a weight's gradient that a product has added to the buffer: one tensor per shape, kept for good."""
    products = [p.tensor for p in build.parameters if p.name.endswith(".weight") and (".linear_" in p.name or OUTPUT in p.name)]
    shapes = dict.fromkeys((weight.shape[-2:], weight.dtype) for weight in products)
    with build.tape.counting(GRADIENT):
        return [empty(build.tape, shape, dtype, "dummy_wgrad") for shape, dtype in shapes]


def check(job: Job, spec: ModelSpec, topology: Topology) -> None:
    """Refuse what Megatron-Core does not do, or what is not modelled of it."""
    found, training, tensor = config(spec), job.training, topology.tensor
    for name, size in (("num_attention_heads", found.heads), ("num_key_value_heads", found.groups)):
        if size % tensor:
            raise InvalidJob(f"{name} {size} does not divide by tensor {tensor}, as Megatron-Core wants", "parallelism.tensor")
    if found.width % tensor:
        raise InvalidJob(f"intermediate_size {found.width} does not divide by tensor {tensor}", "parallelism.tensor")
    if job.parallelism.sequence and tensor == 1:
        raise InvalidJob("sequence parallelism splits tokens over tensor-parallel ranks: there are none", "parallelism.sequence")
    parts = topology.context * (tensor if job.parallelism.sequence else 1) * (2 if topology.context > 1 else 1)
    if training.sequence_length % parts:
        raise InvalidJob(f"{training.sequence_length} tokens do not divide by {parts} ranks", "training.sequence_length")
    if (found.heads // tensor) % topology.context or (found.groups // tensor) % topology.context:
        raise InvalidJob(
            f"{found.groups // tensor} key heads of a rank do not divide by context {topology.context}", "parallelism.context"
        )
    if topology.expert > 1 and found.mixture is None:
        raise InvalidJob("the model has no experts: leave it out", "parallelism.expert")
    if found.mixture is not None and found.mixture.experts % topology.expert:
        raise InvalidJob(f"{found.mixture.experts} experts do not divide by {topology.expert}", "parallelism.expert")
    usual = {
        "adapter": None,
        "quantization": None,
        "objective": None,
        "evaluation": None,
        "trainable": "all",
        "attention_mask": "none",
        "gradient_clipping": False,
        "optimizer_in_backward": False,
        "zero_grad_to_none": True,
        "autocast": False,
        "dtypes": None,
    }
    if found.classic is None or training.attention != "eager" or topology.context > 1:
        usual["attention"] = "sdpa"
    for name, value in usual.items():
        if getattr(training, name) != value:
            raise NotModelled("not modelled with implementation: megatron; leave it out", f"training.{name}")
    if training.precision not in MEGATRON:
        raise InvalidJob(f"Megatron-Core's are {' and '.join(MEGATRON)}", "training.precision")
    if training.head != "causal-lm":
        raise NotModelled("Megatron-Core's model is modelled with its language head only: causal-lm", "training.head")
    if training.optimizer not in ("adamw", "adam", "sgd"):
        raise NotModelled("Megatron-Core's optimizers are adamw, adam and sgd", "training.optimizer")
    if training.loss not in LOSSES:
        raise NotModelled("write eager, or fused for Transformer Engine's kernel", "training.loss")
    if topology.strategy not in ("none", "ddp", "zero1"):
        raise NotModelled(
            f"Megatron-Core has ddp, and zero1 for its distributed optimizer, not {topology.strategy}", "parallelism.strategy"
        )
    if any(place != "none" for place in job.offload.model_dump().values()):
        raise NotModelled("offloading is not modelled with implementation: megatron", "offload")
    recomputed = training.activation_checkpointing
    if not isinstance(recomputed, str) and recomputed.layers is None and recomputed.segments is None:
        raise NotModelled(
            "Megatron-Core's recomputation is modelled for none, full, {layers: m} and {segments: n}",
            "training.activation_checkpointing",
        )
    if recomputed == SELECTIVE and found.classic is None:
        raise NotModelled("selective is not modelled with implementation: megatron yet", "training.activation_checkpointing")
