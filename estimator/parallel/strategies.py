"""The data-parallel strategies, one value each: what ranks share, what goes with it, and what is said of it.

A rule that depends on the strategy asks a field here; nothing else in the package compares strategies' names. A new strategy is a
`Sharding` of its own, a value here, its cases and its page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from estimator.contract.errors import NotModelled
from estimator.contract.job import Job, Parallelism
from estimator.families.sharding import Sharding
from estimator.parallel import offloading
from estimator.parallel.ddp import Ddp
from estimator.parallel.fsdp1 import Fsdp1
from estimator.parallel.fsdp2 import Fsdp2, Policy
from estimator.parallel.optimizer_offload import OffloadedOptimizer
from estimator.parallel.zero import Zero, Zero12
from estimator.parallel.zero3 import Zero3
from estimator.parallel.zero3_offload import OffloadedZero3
from estimator.parallel.zero_offload import OffloadedZero12
from estimator.parallel.zeropp import plus_plus
from estimator.tape.tape import Tape

Feature = Literal[
    "adapters_on_embeddings",
    "checkpoints_of_parts",
    "checkpoints_of_segments",
    "evaluation",
    "float8",
    "kept_gradients",
    "megatron_precisions",
    "objectives",
    "offloaded_activations",
    "partly_trained",
    "prompts",
    "quantized_whole",
    "reentrant_checkpointing",
    "tensor_parallelism",
    "trained_biases_and_copies",
    "trained_layers_by_number",
]
"""What is modelled under some strategies only, and `NotModelled` under the others.

`checkpoints_of_parts`: modules or operations of a layer are recomputed; `_of_segments`: several layers as one. `kept_gradients`:
`zero_grad_to_none: false`. `quantized_whole`: formats that lie whole on every GPU. `trained_…`: LoRA's `bias`, `modules_to_save`,
and `layers`. `tensor_parallelism`: torch's, beside it.
"""

ELEMENTWISE = ("adamw", "adam", "sgd", "sgd-momentum", "adagrad", "adadelta", "adamax", "nadam", "radam", "rmsprop")
"""Optimizers that torch steps on parts of parameters, element by element."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a strategy's `Sharding` is made for: the job's own settings, over so many `ranks` of which `shards` split a parameter.

    `by_lists`: the optimizer steps in lists (foreach). `ignores`: adapters are left whole. `around`: checkpoints are around
    a layer's unit, as transformers before 5 had them.
    """

    job: Job
    tape: Tape
    ranks: int
    shards: int
    policy: Policy
    by_lists: bool
    ignores: bool

    @property
    def asked(self) -> Parallelism:
        """The job's parallelism."""
        return self.job.parallelism

    def of_fsdp2(self) -> tuple[int, Policy, bool, int, bool]:
        """The settings of `Fsdp2`."""
        asked = self.asked
        return self.shards, self.policy, asked.reshard_after_forward, asked.replicas or 1, asked.gradient_sync


@dataclass(frozen=True, slots=True)
class Optimizers:
    """Optimizers that step on a strategy's parameters, in torch's implementations and others; and what to write instead.
    `not_fused`: those whose fused kernels torch has not for such parameters (no strategy is registered for sharding them)."""

    names: tuple[str, ...]
    instead: str
    beside_torch: tuple[str, ...] = ()
    not_fused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Strategy:
    """How data-parallel ranks share a model.

    `says`: an answer's sentences about it, for a job over so many ranks. `mixed`: what a `*-mixed` precision is under it:
    autocast over float32, FSDP's policy, or DeepSpeed's half-precision mode with a float32 copy. `gathers`: no rank has all
    weights. `flattens`: the parameters of a layer lie in one tensor. `stage`: DeepSpeed's; 0 for torch's own. `dtensors`:
    parameters are DTensors. `replicated`: groups of ranks hold the same. `overlapped`: groups of ranks with which it exchanges
    beside kernels, by default. `optimizers`: None where any can step.
    """

    name: str
    sharding: Callable[[Setup], Sharding]
    check_offload: Callable[[Job], None]
    says: Callable[[Job, int], list[str]]
    models: frozenset[Feature]
    mixed: Literal["autocast", "policy", "deepspeed"] = "autocast"
    gathers: bool = False
    flattens: bool = False
    stage: int = 0
    dtensors: bool = False
    replicated: bool = False
    overlapped: frozenset[str] = frozenset()
    optimizers: Optimizers | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def alone(self) -> bool:
        """Whether it is the strategy of a single rank."""
        return self.name == "none"


def _offloaded_or_whole(setup: Setup) -> Sharding:
    host = setup.tape.host
    if host is None:
        return Sharding()
    return OffloadedOptimizer(setup.tape, host, frees=setup.job.offload.gradients == "cpu")


def _ddp(setup: Setup) -> Sharding:
    return Ddp(setup.tape, setup.ranks, setup.asked.gradient_as_bucket_view)


def _fsdp1(setup: Setup) -> Sharding:
    asked, training = setup.asked, setup.job.training
    if not asked.reshard_after_forward:
        raise NotModelled("fsdp1 without resharding is not modelled yet; use fsdp2", "parallelism.reshard_after_forward")
    around = training.transformers_release != "5"
    return Fsdp1(setup.tape, setup.ranks, setup.policy, asked.backward_prefetch, ignores=setup.ignores, around=around)


def _fsdp2(setup: Setup) -> Sharding:
    return Fsdp2(setup.tape, *setup.of_fsdp2())


def _zero12(stage: int) -> Callable[[Setup], Sharding]:
    def made(setup: Setup) -> Sharding:
        accumulated = setup.job.training.gradient_accumulation_steps > 1
        if setup.tape.host is not None:
            return _bucketed(OffloadedZero12(setup.tape, setup.tape.host, setup.ranks, stage, accumulated=accumulated), setup)
        return _bucketed(Zero12(setup.tape, setup.ranks, stage), setup)

    return made


def _zero3(setup: Setup) -> Sharding:
    host, plus = setup.tape.host, plus_plus(setup.job)
    if host is not None:
        return _bucketed(OffloadedZero3(setup.tape, host, setup.ranks, setup.job.offload, plus), setup)
    return _bucketed(Zero3(setup.tape, setup.ranks, foreach=setup.by_lists, plus=plus), setup)


def _bucketed(made: Zero, setup: Setup) -> Sharding:
    """With the buckets that the job says."""
    if setup.asked.zero_reduce_bucket_size is not None:
        made.bucket_size = setup.asked.zero_reduce_bucket_size
    made.buckets = 2 if setup.asked.zero_overlap_comm else 1
    return made


def _says_fsdp1(job: Job, ranks: int) -> list[str]:
    return [f"each layer is a flat parameter over {ranks} GPUs (use_orig_params); gradients are reduced in every micro-step"]


def _says_fsdp2(job: Job, ranks: int) -> list[str]:
    titan = job.training.implementation == "torchtitan"
    groups = "the embedding, each layer, and the last norm with the output layer are groups" if titan else "each layer is a group"
    reduced = "reduced in every micro-step" if job.parallelism.gradient_sync else "whole until the last micro-step"
    return [f"{groups} of fully_shard over {ranks // (job.parallelism.replicas or 1)} GPUs; gradients are {reduced}"]


def _says_zero(job: Job, ranks: int) -> list[str]:
    said = [f"DeepSpeed 0.19 with its defaults over {ranks} GPUs; float32 master weights"]
    if job.parallelism.zero_quantized_gradients and job.hardware.nodes == 1:
        said.append("gradients are reduced as they are: DeepSpeed quantizes them between nodes only, and there is one")
    return said


_WHOLE: frozenset[Feature] = frozenset(get_args(Feature)) - {"tensor_parallelism"}
"""Where every rank runs the whole model."""
_ZERO12: frozenset[Feature] = frozenset({"checkpoints_of_parts", "checkpoints_of_segments"})
_DEEPSPEED = Optimizers(("adamw", "adam", "sgd", "sgd-momentum"), "use adamw, or fsdp2")

NONE = Strategy("none", _offloaded_or_whole, offloading.check_one_gpu, lambda job, ranks: [], _WHOLE)
DDP = Strategy(
    "ddp",
    _ddp,
    offloading.refuse_ddp,
    lambda job, ranks: [f"each of {ranks} GPUs holds the whole model, and gradient buckets as large as its gradients"],
    _WHOLE,
    overlapped=frozenset({"data"}),
)
ZERO1 = Strategy(
    "zero1",
    _zero12(1),
    offloading.check_zero,
    _says_zero,
    _ZERO12 | {"megatron_precisions"},
    mixed="deepspeed",
    stage=1,
    optimizers=_DEEPSPEED,
)
ZERO2 = replace(ZERO1, name="zero2", sharding=_zero12(2), models=_ZERO12, stage=2)
ZERO3 = replace(
    ZERO2,
    name="zero3",
    sharding=_zero3,
    models=frozenset({"checkpoints_of_segments"}),
    gathers=True,
    stage=3,
    overlapped=frozenset({"data"}),
)
FSDP1 = Strategy(
    "fsdp1",
    _fsdp1,
    offloading.refuse_fsdp1,
    _says_fsdp1,
    frozenset({"partly_trained", "reentrant_checkpointing", "trained_layers_by_number"}),
    mixed="policy",
    gathers=True,
    flattens=True,
    overlapped=frozenset({"data"}),
    optimizers=Optimizers(ELEMENTWISE, "use adamw"),
)
FSDP2 = Strategy(
    "fsdp2",
    _fsdp2,
    offloading.check_fsdp2,
    _says_fsdp2,
    frozenset(
        {
            "adapters_on_embeddings",
            "checkpoints_of_parts",
            "float8",
            "partly_trained",
            "prompts",
            "tensor_parallelism",
            "trained_biases_and_copies",
            "trained_layers_by_number",
        }
    ),
    mixed="policy",
    gathers=True,
    dtensors=True,
    overlapped=frozenset({"data", "replicas"}),
    optimizers=Optimizers(ELEMENTWISE, "use adamw, or adamw-8bit of torchao", ("torchao",), ("sgd", "sgd-momentum", "adagrad")),
)
HSDP = replace(FSDP2, name="hsdp", models=FSDP2.models - {"float8"}, replicated=True)

STRATEGIES = {one.name: one for one in (NONE, DDP, ZERO1, ZERO2, ZERO3, FSDP1, FSDP2, HSDP)}
"""Every strategy by the name that jobs have for it."""


def strategy_of(job: Job) -> Strategy:
    """The strategy of a job whose defaults are filled in."""
    return STRATEGIES[job.parallelism.strategy or "none"]
