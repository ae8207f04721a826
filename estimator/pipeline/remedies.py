"""What would take less of a job's memory, by the part of its peak that it removes or shrinks: settings, to be tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from estimator.contract.answer import Memory
from estimator.contract.job import Job
from estimator.contract.job.adapter import ALL_LINEAR, Lora
from estimator.families import built
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import DDP, FSDP1, FSDP2, ZERO3, strategy_of
from estimator.serving.engine import WHOLE
from estimator.serving.engines import engine_of
from estimator.tape.tape import ACTIVATION, COMMUNICATION, GRADIENT, KV_CACHE, LOSS, OPTIMIZER_STATE, PARAMETER, TEMPORARY

PARTS = 2
"""How many of the largest parts are spoken of."""
EXPERTS = "training.quantized_experts"
"""The field that stores a mixture's experts in the few bits of its linear layers."""
HEAD = "head and loss"
"""Where the peak is, if the loss makes it."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of a job, as its own keys have it. `same_result`: the same is computed, up to rounding, on the same hardware."""

    said: str
    change: dict[str, dict[str, Any]]
    same_result: bool = False

    @property
    def field(self) -> str:
        """The first key that it changes: 'training.loss'."""
        return self.said.split()[0]

    def beside(self, other: Remedy) -> Remedy:
        """This remedy and another in one, which change different keys."""
        change = {part: {**self.change.get(part, {}), **other.change.get(part, {})} for part in {**self.change, **other.change}}
        return Remedy(f"{self.said} and {other.said}", change, self.same_result and other.same_result)


def parts(memory: Memory) -> dict[str, int]:
    """Bytes of each part at the peak, the largest first; where the loss sets it, what it makes of the logits is part of it."""
    found = dict(memory.at_peak)
    if memory.peak.part == HEAD and LOSS in found:
        found[LOSS] += found.pop(TEMPORARY, 0)
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def largest_parts(memory: Memory) -> list[str]:
    """The largest parts, and the loss, where it sets the peak."""
    found = list(parts(memory))
    return found[:PARTS] + ([LOSS] if LOSS in found[PARTS:] and memory.peak.part == HEAD else [])


def remedies(job: Job, memory: Memory, spec: ModelSpec) -> list[Remedy]:
    """For each of its largest parts, what would make most of it first; whether it is modelled, or enough, only
    trying says."""
    found: dict[str, Remedy] = {}
    if job.task == "serve":
        found |= {remedy.said: remedy for remedy in _within_the_cache(job, memory)}
    elif _fragments(job, memory):
        remedy = _set("training", True, expandable_segments=True)
        found[remedy.said] = remedy
    for part in largest_parts(memory):
        each = _of_serving(part, job) if job.task == "serve" else _of_training(part, job, memory, spec)
        found |= {remedy.said: remedy for remedy in each if remedy.said not in found}
    return list(found.values())


def _fragments(job: Job, memory: Memory) -> bool:
    """Whether it may be the allocator's segments alone that are too much: what lies in them is not, or nobody asked of it."""
    if job.training.expandable_segments or memory.capacity_bytes is None:
        return False
    cached = memory.overhead.get("cached_blocks")
    return cached is None or 0 < memory.total_bytes - memory.capacity_bytes <= cached


def _set(part: str, same_result: bool = False, **settings: Any) -> Remedy:
    (name, value), *_ = settings.items()
    said = f"{part}.{name} {value if isinstance(value, str) else str(value).lower()}"
    return Remedy(said, {part: settings}, same_result)


def _of_training(part: str, job: Job, memory: Memory, spec: ModelSpec) -> Iterator[Remedy]:
    asked = job.training
    strategy = strategy_of(job)
    if part == LOSS and asked.loss == "eager" and asked.head == "causal-lm":
        yield _set("training", True, loss="fused")
        yield _set("training", True, loss="cut")
        yield _set("training", True, loss="chunked")
    if part == ACTIVATION and asked.activation_checkpointing == "none":
        yield _set("training", True, activation_checkpointing="full")
    if part == PARAMETER and asked.adapter and not asked.quantization:
        yield _set("training", quantization="nf4")
    if part == PARAMETER and asked.quantization in ("nf4", "nf4-double", "fp4") and not asked.quantized_experts:
        yield from _with_experts(job, spec)
    if memory.peak_phase == "optimizer_step" and asked.optimizer_implementation == "foreach":
        yield _set("training", True, optimizer_implementation="fused")
    if part == OPTIMIZER_STATE and asked.optimizer in ("adamw", "adam") and strategy.optimizers is None:
        yield _set("training", optimizer="adamw-8bit")
        yield Remedy("offload.optimizer cpu", {"offload": {"optimizer": "cpu"}})
    if part in (OPTIMIZER_STATE, GRADIENT, PARAMETER) and not strategy.alone:
        for other in (FSDP2, FSDP1, ZERO3):
            if other is not strategy:
                change = {"parallelism": {"strategy": other.name, "replicas": None}}
                yield Remedy(f"parallelism.strategy {other}", change, True)
    if part == COMMUNICATION and strategy is DDP and not job.parallelism.gradient_as_bucket_view:
        yield _set("parallelism", True, gradient_as_bucket_view=True)


def _with_experts(job: Job, spec: ModelSpec) -> Iterator[Remedy]:
    """A mixture's experts in few bits, too, and LoRA on other layers alone: bitsandbytes quantizes linear layers, and
    transformers 5 holds a layer's experts as one tensor, which is none."""
    if not spec.has_experts:
        return
    given: dict[str, Any] = {"quantized_experts": True}
    said = f"{EXPERTS} true"
    adapter = job.training.adapter
    if isinstance(adapter, Lora) and adapter.targets == ALL_LINEAR and spec.held_in:
        names = dict.fromkeys(name.rpartition(".")[2] for name in built(spec).linears if not name.startswith("lm_head"))
        others = [name for name in names if name not in spec.held_in]
        given["adapter"] = {**adapter.model_dump(exclude_unset=True), "targets": others}
        said += f" and LoRA on {', '.join(others)} alone"
    yield Remedy(said, {"training": given})


def _within_the_cache(job: Job, memory: Memory) -> Iterator[Remedy]:
    """The longest context, or the most sequences, for which what the engine leaves for its cache has room."""
    asked, engine = job.serving, memory.engine
    if engine is None or not engine.longest_context or engine.concurrency is None:
        return
    if engine.longest_context < asked.context:
        yield _set("serving", context=engine.longest_context)
    elif 1 <= engine.concurrency < asked.concurrency:
        yield _set("serving", concurrency=int(engine.concurrency))


def _of_serving(part: str, job: Job) -> Iterator[Remedy]:
    if part == KV_CACHE and job.serving.kv_cache in WHOLE:
        yield _set("serving", kv_cache="q8_0" if engine_of(job).reads_gguf else "fp8")
    if part == PARAMETER:
        for weights in engine_of(job).smaller_weights(job.serving.weights):
            yield _set("serving", weights=weights)
