"""What SGLang holds on one rank when it has started, and whether it starts at all.

After sglang/srt/mem_cache/kv_cache_configurator.py (`_profile_available_bytes`) and distributed/bootstrap.py
(`measure_pre_model_load_memory`) of 0.5.23:

    before = GPU - CUDA's context - process groups,  rest = before - weights - before x (1 - mem_fraction_static)

Pools are made of the rest. Activations, CUDA graphs, and the table of each request's tokens come out of what is left free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.contract.answer import EngineMemory, KvCache, Memory
from estimator.contract.job import Job, Serving
from estimator.contract.units import MIB, gib
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity, capacity
from estimator.runtime.overheads import Overhead
from estimator.runtime.overheads import facts as outside
from estimator.serving.activations import widest_layer
from estimator.serving.sglang.backend import held_by_sglang, tokens_at_once
from estimator.serving.sglang.pools import Cells, cells, concurrency, needed_bytes, pools, ratios
from estimator.serving.sglang.ranks import Ranks, stage_layers
from estimator.serving.sglang.settings import PAGE, facts, pictures_bytes
from estimator.serving.sglang.weights import draft_bytes, weights_bytes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu
from estimator.tape.tape import ACTIVATION

LEFT = "left_free"
"""What is left free, among the parts of the overhead."""
BLACKWELL = 10
"""The major compute capability of the data centres' Blackwell, whose kernels read latents in FP8 without scales."""
FUSED = (9, 10)
"""Major compute capabilities of GPUs whose ranks share memory by NVLink."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Bytes of one rank that do not depend on the GPU's memory: weights, of them what guesses tokens ahead, what a token and a
    state take, the pools that the job needs, what is kept for images, and activations of a pass over as many tokens as are read
    at once."""

    weights: int
    draft: int
    cells: Cells
    needed: int
    pictures: int
    activations: int


def sized(serving: Serving, spec: ModelSpec, ranks: Ranks, plain: DType, gpu: Gpu) -> Sized:
    """What a job's engine, with its defaults, needs on one rank."""
    here = stage_layers(spec.language_model.num_hidden_layers, ranks.stage) if ranks.stage[1] > 1 else None
    each = cells(spec, serving, ranks.attention, gpu.capability[0] == BLACKWELL, here)
    draft = draft_bytes(serving, spec, ranks.tensor, plain, gpu)
    weights = weights_bytes(serving, spec, ranks, plain, gpu) + draft
    pictures = pictures_bytes(serving.engine_version, spec)
    return Sized(weights, draft, each, needed_bytes(each, serving), pictures, _activations(serving, spec, ranks, plain.itemsize))


def _activations(serving: Serving, spec: ModelSpec, ranks: Ranks, plain: int) -> int:
    """The widest layer at the tokens of prompts that are read at once; beside it of a mixture what the first product of each
    chosen expert gives or the second, and what is between them (layers/moe/fused_moe_triton/fused_moe.py). Between attention
    all parts' tokens meet (layers/dp_attention.py, `dp_gather_partial`)."""
    tokens = tokens_at_once(serving, spec)
    met = tokens * ranks.groups
    parts = [each for each in held_by_sglang(spec, ranks) if not each.seen]
    experts = 0
    for each in parts:
        if each.kind == "experts" and each.end == "gate_up_proj" and len(each.shape) == 3:
            _, wide, hidden = each.shape
            experts = max(experts, met * each.used * (max(wide, hidden) + wide // 2) * plain)
    return widest_layer(spec.language_model, parts, tokens, plain, experts, met)


def _taken(ranks: Ranks, gpu: Gpu) -> dict[str, tuple[int, int, int]]:
    """What is gone before the first weight is loaded: expected, at least and at most."""
    found = {"cuda_context": outside()["cuda_context"]}
    if ranks.tensor * ranks.stage[1] > 1:
        found["process_groups"] = facts()["process_groups" if gpu.capability[0] in FUSED else "process_groups_others"]
    return {name: (round(fact.value * MIB), round(fact.low * MIB), round(fact.high * MIB)) for name, fact in found.items()}


def overhead(job: Job, spec: ModelSpec, ranks: Ranks, activations: int, gpu: Gpu) -> Overhead:
    """What is gone before the weights, and what is left free beside weights, pools and activations."""
    taken = _taken(ranks, gpu)
    expected, least, most = (sum(sizes[at] for sizes in taken.values()) for at in range(3))
    parts = {name: sizes[0] for name, sizes in taken.items()}
    memory, share = capacity(job.hardware).memory_bytes, job.serving.mem_fraction_static
    if memory is None or share is None:
        return Overhead(parts, least, most)

    def left(before: int) -> int:
        free = math.ceil((memory - before) * (1 - share)) - activations
        return max(0, free) + pictures_bytes(job.serving.engine_version, spec)

    return Overhead({**parts, LEFT: left(expected)}, least + left(least), most + left(most))


def _rest(found: Sized, serving: Serving, memory: int, taken: int) -> int:
    """Bytes for pools; below zero where weights are more than their share."""
    assert serving.mem_fraction_static is not None
    return math.floor((memory - taken) * serving.mem_fraction_static) - found.weights - found.pictures


def engine_memory(stages: list[Sized], serving: Serving, spec: ModelSpec, ranks: Ranks, card: Capacity, gpu: Gpu) -> EngineMemory:
    """What the engine logs when it starts, of all stages; of its pools nothing where no GPU was given. A pool has as
    many tokens as that of the stage which has room for fewest."""
    found = stages[ranks.stage[0]]
    if card.memory_bytes is None or serving.mem_fraction_static is None:
        return EngineMemory(weights_bytes=found.weights, draft_bytes=found.draft if serving.speculative_algorithm else None)
    taken = sum(one for one, _, _ in _taken(ranks, gpu).values())
    rests = [max(0, _rest(one, serving, card.memory_bytes, taken)) for one in stages]
    least = min(pools(rest, one.cells, serving).tokens for rest, one in zip(rests, stages, strict=True))
    capped = serving if len(stages) == 1 else serving.model_copy(update={"max_total_tokens": least})
    made = pools(rests[ranks.stage[0]], found.cells, capped)
    most = max(spec.longest_sequence or serving.context, serving.context)
    keeps = found.cells.full or found.cells.windowed
    longest = min(most, made.tokens - found.cells.heard) if keeps else most * (made.running > 0)
    if found.cells.windowed and made.windowed <= found.cells.window + (serving.page_size or PAGE):
        longest = 0  # it refuses to start (pool_configurator.py, `validate_swa_pool_size`)
    return EngineMemory(
        weights_bytes=found.weights,
        draft_bytes=found.draft if serving.speculative_algorithm else None,
        cache_bytes=made.nbytes,
        cache_tokens=made.tokens,
        window_tokens=made.windowed if found.cells.windowed and found.cells.full else None,
        states=made.states if found.cells.states else None,
        running_requests=made.running,
        longest_context=max(0, longest),
        concurrency=concurrency(made, found.cells, serving),
    )


def kv_cache(found: Sized, serving: Serving, engine: EngineMemory, ranks: Ranks, card: Capacity, gpu: Gpu) -> KvCache:
    """The pools that the job needs, and what the engine makes, with the range of what is not derived."""
    within = None
    if card.memory_bytes is not None and serving.mem_fraction_static is not None:
        taken = _taken(ranks, gpu).values()
        least, most = (max(0, _rest(found, serving, card.memory_bytes, sum(one[at] for one in taken))) for at in (2, 1))
        within = least, most
    return KvCache(
        bytes_per_token=round(found.cells.token(ratios(serving)[0]) if found.cells.fixed else found.cells.token(1)),
        needed_bytes=found.needed,
        available_bytes=engine.cache_bytes,
        available_tokens=engine.cache_tokens,
        available_range_bytes=within,
    )


def not_started(job: Job, memory: Memory) -> str:
    """What it says where it does not start, or has no room for one request as long as the context; nothing otherwise."""
    asked, engine = job.serving, memory.engine
    if engine is None or engine.cache_tokens is None or memory.capacity_bytes is None or asked.mem_fraction_static is None:
        return ""
    before = memory.capacity_bytes - sum(size for name, size in memory.overhead.items() if name != LEFT)
    rest = math.floor(before * asked.mem_fraction_static) - engine.weights_bytes
    share = f"mem_fraction_static {asked.mem_fraction_static:g}"
    if rest <= 0:
        smallest, weights = math.ceil((asked.mem_fraction_static - rest / before) * 1000) / 1000, gib(engine.weights_bytes)
        more = f"more than {smallest:.3f} would start" if smallest < 1 else f"they are more than the {gib(before)} that are free"
        return f"SGLang would not start: weights of {weights} leave no memory for its cache under {share}; {more}"
    left = f"SGLang would not start: under {share} {gib(rest)} are left for its cache"
    if engine.states is not None and not engine.running_requests:
        return f"{left}, too little for the states of one request"
    if engine.window_tokens is not None and not engine.longest_context:
        return f"{left}, of which layers with a window have room for {engine.window_tokens} tokens, less than one window"
    free, activations = before - engine.weights_bytes - (engine.cache_bytes or 0), memory.at_peak.get(ACTIVATION, 0)
    if free < activations:
        taken = f"activations of {asked.chunked_prefill_size} tokens take {gib(activations)}"
        return f"SGLang would run out of memory: under {share} {gib(free)} are left free, and {taken}; a smaller one would do"
    longest = engine.longest_context or 0
    if longest >= asked.context:
        return ""
    holds = f"SGLang's cache holds {longest} tokens under {share}"
    return f"{holds}, and it refuses requests of {asked.context}: {longest} is the longest"
