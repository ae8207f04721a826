"""What vLLM's engine holds on one rank when it has started, and whether it starts at all.

After v1/worker/gpu_worker.py (`determine_available_memory`) and v1/core/kv_cache_planning.py (`get_kv_cache_configs`) of 0.33:

    cache = ceil(GPU x utilization) - weights - activations - outside torch - CUDA graphs,  blocks = cache // bytes of a block

CUDA's context, and what torch's process groups take before, lie outside the share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from estimator.contract.answer import EngineMemory, KvCache, Memory
from estimator.contract.job import Job, Serving
from estimator.contract.units import MIB, gib
from estimator.families.cache_layers import compresses
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.runtime.overheads import Overhead
from estimator.runtime.overheads import facts as outside
from estimator.serving.drafts import draft_cache
from estimator.serving.tensors import stage_layers
from estimator.serving.vllm.beside import beside
from estimator.serving.vllm.cache_groups import Groups, grouped, kept
from estimator.serving.vllm.packed import packed
from estimator.serving.vllm.pooling import pooled_bytes
from estimator.serving.vllm.profile import Pass, activation_bytes
from estimator.serving.vllm.settings import ASYNC_IN_FLIGHT, NULL_BLOCK, SECOND_RUNNER, TOKENS_OF_REQUESTS, Release, release
from estimator.serving.vllm.sparse import workspace_bytes
from estimator.serving.vllm.speculation import drafter_of, guessing
from estimator.serving.vllm.weights import draft_bytes, draft_parts, rank_tensors, replicas, weights_bytes
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu

HOPPER, BLACKWELL = (9, 0), 10
"""Compute capabilities; of Blackwell's the major one of the data centres'."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Bytes of one rank that do not depend on the GPU's memory: weights, activations, the cache that the job needs; and how it is
    made. `draft`: of the weights, what guesses tokens ahead. `in_flight`: tokens of passes that are not settled."""

    weights: int
    draft: int
    activations: int
    groups: Groups
    in_flight: int
    needed: int


def sized(serving: Serving, spec: ModelSpec, place: Topology, plain: DType, gpu: Gpu) -> Sized:
    """What a job's engine, with its defaults, needs on one rank, of `place.stage`."""
    assert serving.max_num_batched_tokens
    assert serving.max_num_seqs
    version, stage = release(serving.engine_version), (place.stage, place.pipeline)
    tokens = serving.max_num_batched_tokens
    scaled = gpu.capability[0] != BLACKWELL
    run = Pass(
        tokens,
        min(tokens, serving.max_num_seqs),
        plain.itemsize,
        version,
        round(outside()["cublas_workspace_hopper" if gpu.at_least(HOPPER) else "cublas_workspace"].value * MIB),
        sees=not serving.language_model_only,
        gathered=replicas(serving, place),
        indexed=workspace_bytes(serving, spec, scaled),
        context=serving.context,
    )
    cached = dtypes.BY_NAME[serving.kv_cache].itemsize
    drafter = drafter_of(serving, spec)
    guessed, drafts = drafter.tokens if drafter else 0, draft_parts(serving, drafter, spec, place)
    kinds = (*spec.cache_layers, *draft_cache(drafter, spec))
    over = serving.decode_context_parallel_size or 1
    if compresses(kinds):
        groups = packed(kinds)
    else:
        layers = kept(kinds, place.tensor, cached, plain.itemsize, serving.block_size, guessed, scaled, over)
        mine = stage_layers(spec.language_model.num_hidden_layers, stage)
        here = frozenset(entry for entry, at in enumerate(spec.cache_places) if at in mine)
        groups = grouped(layers, here if place.pipeline > 1 else None)
    parts = rank_tensors(serving, spec, place)
    pooled = serving.runner == "pooling"
    in_flight = tokens * _batches(version, place.pipeline)
    draft = draft_bytes(serving, drafter, drafts, plain, gpu)
    guesses = guessing(serving, drafter, spec, drafts, plain.itemsize)
    return Sized(
        weights_bytes(serving, spec, place, plain, gpu) + draft,
        draft,
        pooled_bytes(spec, run, parts) if pooled else activation_bytes(spec, run, parts, serving.weights, stage, guesses),
        groups,
        in_flight,
        serving.concurrency * groups.request_blocks(serving.context, in_flight) * groups.block_bytes,
    )


def _batches(version: Release, stages: int) -> int:
    """Passes that are on their way at once (config/vllm.py, `max_concurrent_batches`): one for each stage, and one more where the
    scheduler does not wait."""
    if version < ASYNC_IN_FLIGHT:
        return stages
    return stages + 1 if version >= SECOND_RUNNER or stages == 1 else stages


def overhead(serving: Serving, place: Topology, gpu: Gpu) -> Overhead:
    """What the engine charges to its share outside torch."""
    parts = {name: each for name, each in beside(serving, place, gpu).items() if each.charged}
    return Overhead(
        {name: each.nbytes for name, each in parts.items()},
        sum(each.low_bytes for each in parts.values()),
        sum(each.high_bytes for each in parts.values()),
    )


def engine_memory(
    found: Sized, others: Iterable[Sized], serving: Serving, spec: ModelSpec, place: Topology, card: Capacity, gpu: Gpu
) -> EngineMemory:
    """What the engine logs when it starts; of its cache nothing where no GPU was given. Each rank makes as many blocks as the one
    that has room for fewest, of `others`, those of all stages."""
    known = beside(serving, place, gpu)
    parts = {
        "weights_bytes": found.weights,
        "draft_bytes": found.draft if serving.speculative_config else None,
        "activation_bytes": found.activations,
        "non_torch_bytes": known["non_torch"].nbytes,
        "cuda_graph_bytes": known["cuda_graphs"].nbytes,
    }
    if card.memory_bytes is None or not found.groups.kinds:
        return EngineMemory(**parts)
    memory, charged = card.memory_bytes, sum(each.nbytes for each in known.values() if each.charged)

    def room(one: Sized) -> int:
        return max(0, _room(one, serving, memory) - charged)

    groups = found.groups
    blocks = min(room(one) // one.groups.block_bytes for one in others if one.groups.block_bytes)
    each = groups.request_blocks(serving.context, found.in_flight)
    usable = blocks - (release(serving.engine_version) >= NULL_BLOCK)
    most = max(spec.most_targets or spec.longest_sequence or serving.context, serving.context)
    return EngineMemory(
        **parts,
        cache_bytes=room(found),
        cache_blocks=blocks,
        cache_tokens=_logged_tokens(blocks, each, groups, serving),
        longest_context=groups.longest(usable, most, found.in_flight),
        concurrency=blocks / each,
    )


def _logged_tokens(blocks: int, each: int, groups: Groups, serving: Serving) -> int:
    if release(serving.engine_version) >= TOKENS_OF_REQUESTS:
        return blocks * serving.context // each
    ranks = serving.decode_context_parallel_size or 1
    return blocks // len(groups.kinds) * min(kind.block for kind in groups.kinds) * ranks


def _room(found: Sized, serving: Serving, memory: int) -> int:
    return math.ceil(memory * serving.gpu_memory_utilization) - found.weights - found.activations


def kv_cache(found: Sized, serving: Serving, engine: EngineMemory, place: Topology, card: Capacity, gpu: Gpu) -> KvCache | None:
    """The cache that the job needs, and what the engine finds for it, with the range of what is not derived."""
    if not found.groups.kinds:
        return None
    within = None
    if card.memory_bytes is not None:
        room, charged = _room(found, serving, card.memory_bytes), overhead(serving, place, gpu)
        within = max(0, room - charged.high_bytes), max(0, room - charged.low_bytes)
    growing = found.groups.growing
    return KvCache(
        bytes_per_token=sum(found.groups.size * kind.page // kind.block for kind in growing),
        needed_bytes=found.needed,
        available_bytes=engine.cache_bytes,
        available_tokens=engine.cache_tokens,
        available_range_bytes=within,
    )


def not_started(job: Job, memory: Memory) -> str:
    """What the engine says where its cache does not hold one request as long as the context; nothing otherwise."""
    asked, engine, cache = job.serving, memory.engine, memory.kv_cache
    if engine is None or engine.longest_context is None or engine.longest_context >= asked.context:
        return ""
    assert engine.cache_bytes is not None
    assert cache is not None
    what = f"vLLM would not start: of its {asked.gpu_memory_utilization:.0%} share"
    if not engine.cache_bytes:
        taken = memory.total_bytes - cache.needed_bytes
        return f"{what} nothing is left for its cache beside {gib(taken)} of weights and activations"
    each = cache.needed_bytes // asked.concurrency
    longest = engine.longest_context
    instead = f"; the longest context that would is {longest} (--max-model-len {longest})" if longest else ""
    one = f"one request of {asked.context} tokens needs {gib(each)}"
    return f"{what} {gib(engine.cache_bytes)} are left for its cache, and {one}{instead}"
