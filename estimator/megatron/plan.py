"""A training job with Megatron-Core as a run on a tape: one rank of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from estimator.errors import InvalidJob, NotModelled
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.layers import Checkpointing
from estimator.job import Job, Parallelism, Training
from estimator.megatron.attention import Context
from estimator.megatron.config import Config, config
from estimator.megatron.experts import Dispatch
from estimator.megatron.linear import Later, Split
from estimator.megatron.losses import LOSSES
from estimator.megatron.model import Place, Stage, workspaces
from estimator.megatron.schedule import Rounds
from estimator.megatron.step import train
from estimator.parallel.megatron import MainParameters
from estimator.parallel.pipeline import TWO, check_pipeline, pipeline_of
from estimator.parallel.schedules import FORWARD, INPUT, SPLIT, Action, Pipeline, waiting
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


def trace_megatron(
    job: Job, spec: ModelSpec, topology: Topology, precision: Recipe, gpu: Gpu = AMPERE, unrolled: bool = False
) -> Builder:
    """Play one step of a job on a new tape, for a rank of `topology.stage`; the builder has the tape and the parameters."""
    training, found = job.training, config(spec)
    pipeline = pipeline_of(job).shortened()
    tape = Tape(gpu)
    tape.begin("load")
    later = Later()
    places = placed(found, topology, pipeline, job.parallelism, training, later)
    assert precision.summed is not None
    data = Group("data", topology.data * topology.context)
    experts = Group("expert_data", topology.expert_data)
    sharding = MainParameters(
        tape,
        precision.summed,
        lambda name: experts if ".experts." in name else data,
        topology.strategy == "zero1",
        Group("pipeline", 2 if pipeline.schedule == "dualpipe" else 1),
    )
    build = Builder(
        tape,
        precision.weights,
        checkpointing=_recomputed(training, len(places[0].layers)),
        sharding=sharding,
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


def placed(
    found: Config, topology: Topology, pipeline: Pipeline, asked: Parallelism, training: Training, later: Later
) -> list[Place]:
    """Where the chunks of the ranks of `topology.stage` are."""
    layers = stages(found, pipeline, asked)
    split = Split(Group("tensor", topology.tensor), bool(asked.sequence), later)
    context = Context(Group("context", topology.context), asked.context_exchange != "a2a")
    dispatch = Dispatch(
        Group("expert", topology.expert),
        Group("expert_tensor", topology.expert_tensor),
        training.expert_capacity_factor,
        training.expert_imbalance,
    )
    return [
        Place(i, layers[i], i == 0, i == pipeline.stages - 1, split, context, dispatch) for i in pipeline.held(topology.stage)
    ]


def stages(found: Config, pipeline: Pipeline, asked: Parallelism) -> list[range]:
    """The layers of each part of the model."""
    layers, count = len(found.sparse), pipeline.stages
    if asked.pipeline_layers is None:
        if layers % count:
            chunks = count // pipeline.ranks
            of = f"{count} parts, {chunks} on each rank" if chunks > 1 else f"{count} stages"
            raise InvalidJob(
                f"{layers} layers do not divide by {of}; use pipeline: "
                f"{', '.join(str(n) for n in range(1, layers + 1) if layers % (n * chunks) == 0) or 1}, or pipeline_layers",
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


def candidates(found: Config, pipeline: Pipeline, asked: Parallelism) -> list[int]:
    """The ranks one of which needs most: of those with the same layers the first, which holds most micro-batches; where weights'
    gradients wait, too, all that hold other numbers of either."""
    layers, last = stages(found, pipeline, asked), pipeline.stages - 1
    seen: dict[object, int] = {}
    for rank in range(pipeline.ranks):
        kinds = [(tuple(found.sparse[i] for i in layers[n]), n == 0, n == last) for n in pipeline.held(rank)]
        held = frozenset(_highest(pipeline.actions(rank))) if pipeline.schedule in SPLIT else None
        seen.setdefault((tuple(sorted(kinds)), held), rank)
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
    return replace(checkpointing(training, layers), reentrant=True)


def _dummies(build: Builder) -> list[Tensor]:
    """What autograd gets for a weight's gradient that a product has added to the buffer: one tensor per shape, kept for good."""
    products = [p.tensor for p in build.parameters if p.name.endswith(".weight") and (".linear_" in p.name or OUTPUT in p.name)]
    shapes = dict.fromkeys((weight.shape[-2:], weight.dtype) for weight in products)
    with build.tape.counting(GRADIENT):
        return [empty(build.tape, shape, dtype, "dummy_wgrad") for shape, dtype in shapes]


def _check_context(found: Config, topology: Topology, exchange: str | None) -> None:
    """What Transformer Engine wants of the ways in which ranks share a sequence (`attn_forward_func_with_cp`)."""
    field = "parallelism.context_exchange"
    if topology.context == 1:
        if exchange is not None:
            raise InvalidJob("no ranks share a sequence: leave it out, or write context: 2 or more", field)
        return
    if exchange not in ("p2p", "a2a"):
        raise NotModelled(f"{exchange} is not modelled; write p2p or a2a", field)
    heads, groups = found.heads // topology.tensor, found.groups // topology.tensor
    if exchange == "a2a" and found.latent is not None and found.latent.plain + found.latent.rotary != found.latent.value:
        raise InvalidJob("keys and values of different sizes are not exchanged by a2a; write p2p", field)
    if exchange == "a2a" and (heads % topology.context or groups % topology.context):
        raise InvalidJob(
            f"{groups} key heads of a rank do not divide by context {topology.context}; context_exchange: p2p needs no such",
            "parallelism.context",
        )


def check(job: Job, spec: ModelSpec, topology: Topology) -> None:
    """Refuse what Megatron-Core does not do, or what is not modelled of it."""
    found, training, tensor = config(spec), job.training, topology.tensor
    check_pipeline(job)
    if found.tied and job.parallelism.pipeline_schedule in TWO and topology.pipeline > 1:
        raise NotModelled(
            "a tied embedding where the first stage and the last are on one rank is not modelled", "parallelism.pipeline_schedule"
        )
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
    _check_context(found, topology, job.parallelism.context_exchange)
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
        "attention": "sdpa",
        "attention_mask": "none",
        "gradient_clipping": False,
        "optimizer_in_backward": False,
        "zero_grad_to_none": True,
        "autocast": False,
        "dtypes": None,
    }
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
    if recomputed == "selective":
        raise NotModelled("selective is not modelled with implementation: megatron yet", "training.activation_checkpointing")
