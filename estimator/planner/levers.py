"""What a plan may change of a training job, and to what: fields with their values on some hardware.

The model, the sequences, the batch, the optimizer and the precision stay as they are unless they are allowed to change. The batch
is shared out over the ranks in micro-batches, and accumulation makes up for their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from estimator.contract.errors import InvalidValue, did_you_mean
from estimator.contract.job import Hardware, Job
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import NONE
from estimator.parallel.strategies import STRATEGIES as SHARDINGS
from estimator.planner.numbers import place
from estimator.planner.ranges import values

STRATEGY, MICRO, STEPS = "parallelism.strategy", "training.micro_batch_size", "training.gradient_accumulation_steps"
TENSOR, PIPELINE, CONTEXT, EXPERT = (f"parallelism.{name}" for name in ("tensor", "pipeline", "context", "expert"))
LAYERS = "parallelism.pipeline_layers"
CHECKPOINTS, ACTIVATIONS = "training.activation_checkpointing", "offload.activations"
KERNELS, LOSS = "training.implementation", "training.loss"
OPTIMIZER, GRADIENTS, PARAMETERS = (f"offload.{name}" for name in ("optimizer", "gradients", "parameters"))
STRATEGIES = {
    "megatron": ("zero1", "ddp"),
    "torchtitan": ("fsdp2", "hsdp"),
    "": ("fsdp2", "ddp", "zero1", "zero2", "zero3", "hsdp"),
}
"""How data-parallel ranks share a model, by implementation; the usual one first. FSDP1, which does as FSDP2, is among them where
a job names it."""
OFFLOADS: dict[str, tuple[tuple[str, ...], ...]] = {
    "none": ((OPTIMIZER,), (OPTIMIZER, GRADIENTS)),
    "zero1": ((OPTIMIZER,),),
    "zero2": ((OPTIMIZER,),),
    "zero3": ((OPTIMIZER,), (OPTIMIZER, PARAMETERS)),
    "fsdp2": ((OPTIMIZER, GRADIENTS, PARAMETERS),),
    "hsdp": ((OPTIMIZER, GRADIENTS, PARAMETERS),),
}
"""What each strategy can keep in the host's memory; ZeRO's gradients go with its optimizer."""
CHOICES: dict[str, tuple[Any, ...]] = {
    CHECKPOINTS: ("none", "selective", "full"),
    ACTIVATIONS: ("none", "cpu"),
    KERNELS: ("transformers", "liger"),
    LOSS: ("eager", "chunked", "cut", "fused"),
}
"""Values of fields that go with any hardware."""
ASKED: dict[str, tuple[Any, ...]] = {
    "training.precision": ("bf16-mixed", "bf16-true"),
    "training.optimizer": ("adamw-8bit",),
    "training.quantization": ("nf4", "nf4-double"),
    "training.optimizer_in_backward": (True,),
    CONTEXT: (),
}
"""Fields that stay as they are unless they are allowed, and the values that they may then have beside the job's own."""
DERIVED = (STEPS, "parallelism.data", "parallelism.replicas")
"""Fields that follow from the others."""
FEWEST_LAYERS = 2
"""Of a stage of a pipeline whose stages have one layer more or fewer: with less, most of them would wait for the others."""
LEAST_WORK = "none"
"""Of `CHECKPOINTS` and `ACTIVATIONS`: nothing is computed twice, nothing copied."""
MOST_WORK = "full"

PARTS = ("training", "parallelism", "offload")
"""Parts of a job that a plan changes."""

Settings = dict[str, Any]
"""Values by the dotted names of a job's fields."""


class Extent(NamedTuple):
    """GPUs of a node, and nodes."""

    gpus: int
    nodes: int

    @property
    def total(self) -> int:
        return self.gpus * self.nodes


def no_more_work(one: Settings, other: Settings) -> bool:
    """Whether of two settings that differ in `CHECKPOINTS` and `ACTIVATIONS` only, a step of `one` takes no longer.

    Recomputing adds kernels to backward, of some or of all layers, and offloading adds copies; neither takes any away, but what
    is computed again is not copied. Time is the sum of kernels, and of what is not hidden behind them (timing/passes.py), which
    shrinks by no more than the kernels that hide it grow.
    """
    less, more = one[CHECKPOINTS], other[CHECKPOINTS]
    fewer = less in (more, LEAST_WORK) or (less == "selective" and more == MOST_WORK)
    same = (less, one[ACTIVATIONS]) == (more, other[ACTIVATIONS])
    return same or (fewer and bool(one[ACTIVATIONS] == LEAST_WORK))


@dataclass(frozen=True)
class Levers:
    """The fields of one job that may change. `allowed`: values of further fields, or the only ones beside the job's own;
    `denied`: values that a field may not get, None for any. `exact`: the sequences of a step stay as many as they are."""

    job: Job
    spec: ModelSpec
    allowed: Mapping[str, tuple[Any, ...]]
    denied: Mapping[str, tuple[Any, ...] | None]
    exact: bool
    sequences: int
    """Of a step, over all GPUs."""

    def own(self, name: str) -> Any:
        """What the job says."""
        part, last = place(self.job, name)
        return getattr(part, last)

    def among(self, name: str, usual: Iterable[Any]) -> list[Any]:
        """The job's own value of a field, and the others that it may have."""
        own = self.own(name)
        denied = next((values for field, values in self.denied.items() if name == field or name.startswith(f"{field}.")), ())
        if denied is None:
            return [own]
        found = [value for value in self.allowed.get(name) or usual if value not in denied]
        return found if own in denied and found else list(_once([own, *found]))

    def families(self, extent: Extent) -> Iterator[Settings]:
        """Settings of all fields but `CHECKPOINTS` and `ACTIVATIONS`, the job's own first."""
        for degrees, each in self._degrees(extent):
            plain = degrees[TENSOR] == 1 or self.job.training.implementation == "megatron"
            for strategy in self._strategies(extent, degrees):
                for offload in self._offloads(strategy) if plain else [self._own_offload]:
                    for micro in self._micro_batches(each):
                        if strategy == NONE.name and offload[GRADIENTS] != "none" and micro < each:
                            continue  # torchao's frees gradients as they come, and adds none up
                        for kernels in self.kernels if plain else self.kernels_of_dtensor:
                            yield {**degrees, STRATEGY: strategy, **offload, MICRO: micro, STEPS: each // micro, **kernels}

    def work(self, family: Settings) -> list[Settings]:
        """Settings of `CHECKPOINTS` and `ACTIVATIONS`, those that take no more time before those that take no less."""
        activations = CHOICES[ACTIVATIONS] if "offloaded_activations" in SHARDINGS[family[STRATEGY]].models else ()
        both = product(self.among(CHECKPOINTS, CHOICES[CHECKPOINTS]), self.among(ACTIVATIONS, activations))
        found = [{CHECKPOINTS: checkpoints, ACTIVATIONS: activations} for checkpoints, activations in both]
        return sorted(found, key=lambda one: sum(no_more_work(other, one) for other in found))

    @cached_property
    def kernels(self) -> list[Settings]:
        """What computes the same otherwise, and fields that were allowed."""
        implementation, loss = self.own(KERNELS), self.own(LOSS)
        found: list[Settings] = [{KERNELS: implementation, LOSS: loss}]
        if implementation in CHOICES[KERNELS]:
            every = product(self.among(KERNELS, CHOICES[KERNELS]), self.among(LOSS, CHOICES[LOSS]))
            # Liger's patch brings a loss of its own
            found = list(_once([{KERNELS: name, LOSS: "fused" if name == "liger" else loss} for name, loss in every]))
        further = [name for name in self.allowed if name in ASKED or name not in self._tabled]
        extra = [self.among(name, ASKED.get(name, ())) for name in further if name != CONTEXT]
        names = [name for name in further if name != CONTEXT]
        return [{**one, **dict(zip(names, rest, strict=True))} for one in found for rest in product(*extra)]

    @property
    def kernels_of_dtensor(self) -> list[Settings]:
        """Those of `kernels` that DTensor's tensor parallelism is modelled with, beside the job's own."""
        usual = {KERNELS: ("transformers", self.own(KERNELS)), LOSS: ("eager", self.own(LOSS))}
        return [one for one in self.kernels if all(one[name] in usual[name] for name in usual)]

    @cached_property
    def _own_offload(self) -> Settings:
        return {name: self.own(name) for name in (OPTIMIZER, GRADIENTS, PARAMETERS)}

    @property
    def _tabled(self) -> set[str]:
        return {*CHOICES, *ASKED, STRATEGY, MICRO, TENSOR, PIPELINE, LAYERS, EXPERT, OPTIMIZER, GRADIENTS, PARAMETERS}

    def _degrees(self, extent: Extent) -> Iterator[tuple[Settings, int]]:
        """Degrees of the kinds of parallelism, and the sequences that each rank has in a step."""
        megatron = self.job.training.implementation == "megatron"
        within = [d for d in _divisors(extent.gpus) if d & (d - 1) == 0]
        tensors = self.among(TENSOR, within)
        pipelines = self._pipelines(extent) if megatron else [{PIPELINE: one} for one in self.among(PIPELINE, ())]
        contexts = self.among(CONTEXT, within if CONTEXT in self.allowed else ())
        experts = self._experts(extent) if megatron else [self.own(EXPERT)]
        for tensor, pipeline, context, expert in product(tensors, pipelines, contexts, experts):
            ranks, rest = divmod(extent.total, tensor * pipeline[PIPELINE] * context)
            if rest or not ranks or (ranks * context * tensor) % expert:
                continue
            if self.exact and self.sequences % ranks:
                continue
            each = max(1, self.sequences // ranks)
            yield {TENSOR: tensor, **pipeline, CONTEXT: context, EXPERT: expert}, each

    def _pipelines(self, extent: Extent) -> list[Settings]:
        """Stages of a pipeline, with the layers of each where not all have as many: the first and the last have fewer, as the
        embedding and the loss are there besides."""
        asked, depth = self.job.parallelism, self.spec.depth
        whole = asked.model_chunks in (None, 1) and asked.pipeline_schedule in (None, "1f1b")
        fitting = [d for d in _divisors(extent.total) if depth % d == 0 or (whole and depth // d >= FEWEST_LAYERS)]
        found = []
        for stages in self.among(PIPELINE, fitting):
            layers = asked.pipeline_layers if stages == asked.pipeline else None
            if layers is None and whole and depth % stages:
                layers = _uneven(depth, stages)
            found.append({PIPELINE: stages, LAYERS: layers})
        return found

    def _experts(self, extent: Extent) -> list[int]:
        every = getattr(self.spec, "num_experts", None) or 1
        return self.among(EXPERT, [d for d in _divisors(extent.total) if every % d == 0 and d & (d - 1) == 0])

    def _strategies(self, extent: Extent, degrees: Settings) -> list[str]:
        if extent.total == degrees[TENSOR] * degrees[PIPELINE]:
            return ["none"]
        implementation = self.job.training.implementation
        usual = STRATEGIES.get(implementation, STRATEGIES[""])
        own = self.own(STRATEGY)
        found = [usual[0] if value in (None, "none") else value for value in self.among(STRATEGY, usual)]
        grouped = extent.nodes > 1 and extent.gpus > degrees[TENSOR]
        alone = implementation != "megatron" and degrees[TENSOR] > 1
        kept = [one for one in _once(found) if (one != "hsdp" or grouped) and (not alone or one in ("fsdp2", "hsdp"))]
        return kept or ([own] if own else [])

    def _offloads(self, strategy: str) -> Iterator[Settings]:
        """Where parts of the model are kept."""
        own = self._own_offload
        possible = [dict.fromkeys(own, "none")]
        possible += [{name: "cpu" if name in kept else "none" for name in own} for kept in OFFLOADS.get(strategy, ())]
        if self.job.training.implementation in ("megatron", "torchtitan"):
            possible = [own]
        yield from _once([own, *(one for one in possible if all(one[name] in self.among(name, ("none", "cpu")) for name in one))])

    def _micro_batches(self, each: int) -> list[int]:
        """Powers of two that divide the sequences of a rank, and the job's own number where it does; the largest first."""
        powers = [1 << power for power in range(each.bit_length()) if each % (1 << power) == 0]
        own = self.own(MICRO)
        found = sorted((size for size in self.among(MICRO, powers) if each % size == 0), reverse=True)
        return found or [next(size for size in range(min(own, each), 0, -1) if each % size == 0)]


def read_allowed(job: Job, texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Fields that may change, from texts such as training.precision or training.precision=bf16-true. Raises `InvalidJob`."""
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, sign, said = (part.strip() for part in text.partition("="))
        if name in DERIVED:
            raise InvalidValue("follows from the other fields, so it cannot be asked for", name)
        if not name.startswith(tuple(f"{part}." for part in PARTS)):
            raise InvalidValue(f"is not among what a plan changes: fields of {', '.join(PARTS)}", name)
        place(job, name)
        if not sign and name not in ASKED:
            raise InvalidValue(f"may change to what? Write --allow {name}=VALUES", name)
        found[name] = values(job, name, said).taken if sign else ASKED[name]
    return found


def read_denied(job: Job, texts: Iterable[str]) -> dict[str, tuple[Any, ...] | None]:
    """Fields, or parts such as offload, that stay as they are, and values that a field does not get. Raises `InvalidJob`."""
    found: dict[str, tuple[Any, ...] | None] = {}
    for text in texts:
        name, sign, said = (part.strip() for part in text.partition("="))
        if name in PARTS and not sign:
            found[name] = None
            continue
        if not name.startswith(tuple(f"{part}." for part in PARTS)):
            known = ", ".join(PARTS)
            raise InvalidValue(f"is not among what a plan changes: {known}, or a field of them.{did_you_mean(name, PARTS)}", name)
        place(job, name)
        found[name] = values(job, name, said).taken if sign else None
    return found


def _uneven(layers: int, stages: int) -> tuple[int, ...]:
    """As many layers on each stage as there can be, with one fewer on stages at both ends."""
    fewer, more = divmod(layers, stages)
    ends = stages - more
    return (fewer,) * (ends // 2) + (fewer + 1,) * more + (fewer,) * (ends - ends // 2)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _once(every: Iterable[Any]) -> list[Any]:
    """Each value once, in the order in which they come."""
    found: list[Any] = []
    for one in every:
        if one not in found:
            found.append(one)
    return found


def extent(hardware: Hardware) -> Extent:
    """How many GPUs, and in how many nodes."""
    return Extent(hardware.gpus, hardware.nodes)
