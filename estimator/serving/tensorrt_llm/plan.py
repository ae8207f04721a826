"""What TensorRT-LLM holds on one rank when it has started, and whether it starts at all.

After tensorrt_llm/_torch/pyexecutor/_util.py (`KvCacheCreator.configure_kv_cache_capacity`, `_cal_max_memory`) and
resource_manager.py (`KVCacheManager.calculate_max_num_blocks`) of 1.1 and 1.2. It starts once with a small cache, runs passes of
`max_num_tokens` tokens, and starts anew with what they left:

    cache = fraction x (GPU - weights - activations - outside torch),  blocks = cache // (tokens of a block x bytes of a token)

Outside torch are CUDA's context, graphs and communicators. A context that the cache does not hold is cut, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.answer import EngineMemory, KvCache, Memory
from estimator.contract.job import Job, Serving
from estimator.contract.units import MIB, gib
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity, capacity
from estimator.parallel.topology import Topology
from estimator.runtime.overheads import Overhead
from estimator.serving.activations import expert_workspaces, widest_layer
from estimator.serving.tensorrt_llm.settings import BATCH, BLOCK, FRACTION, TOKENS, facts
from estimator.serving.tensorrt_llm.weights import rank_tensors, token_bytes, weights_bytes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu

LEFT = "left_free"
"""What its cache leaves, among the parts of the overhead."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Bytes of one rank that do not depend on the GPU's memory: weights, activations at least, expected and at most, a token of
    the cache, and the cache that the job needs."""

    weights: int
    activations: tuple[int, int, int]
    token: int
    needed: int


def sized(serving: Serving, spec: ModelSpec, place: Topology, plain: DType, gpu: Gpu) -> Sized:
    """What a job's engine, with its defaults, needs on one rank."""
    ranks = place.tensor
    apart = ranks if serving.enable_attention_dp else 1
    tensors = rank_tensors(serving, spec, ranks)
    tokens = serving.max_num_tokens or TOKENS
    experts = expert_workspaces(list(tensors), tokens * apart, plain.itemsize)
    activations = widest_layer(spec, list(tensors), tokens, plain.itemsize, experts, tokens * apart)
    share = facts()["mixture"]
    least, most = (round(activations * by) if experts else activations for by in (share.low, share.high))
    token = token_bytes(serving, spec.cache_layers, ranks // apart)
    requests, block = -(-serving.concurrency // apart), serving.tokens_per_block or BLOCK
    return Sized(
        weights_bytes(serving, spec, tensors, plain, gpu),
        (least, activations, most),
        token,
        requests * -(-serving.context // block) * block * token,
    )


def _taken(place: Topology) -> dict[str, tuple[int, int, int]]:
    """What is not derived: expected, at least and at most."""
    known = facts()
    found = {"outside_torch": known["outside_tensor_parallel" if place.tensor > 1 else "outside"], "kept_buffers": known["kept"]}
    return {name: (round(fact.value * MIB), round(fact.low * MIB), round(fact.high * MIB)) for name, fact in found.items()}


def _free(found: Sized, place: Topology, memory: int) -> tuple[int, int, int]:
    """Bytes that its fraction is of: expected, at least and at most."""
    taken = _taken(place).values()
    expected, least, most = (sum(sizes[at] for sizes in taken) for at in range(3))
    low, middle, high = found.activations
    rest = memory - found.weights
    return max(0, rest - middle - expected), max(0, rest - high - most), max(0, rest - low - least)


def overhead(job: Job, found: Sized, place: Topology) -> Overhead:
    """What lies beside weights, activations and the cache: not derived, and what the cache leaves free."""
    taken = _taken(place)
    parts = {name: sizes[0] for name, sizes in taken.items()}
    least, most = (sum(sizes[at] for sizes in taken.values()) for at in (1, 2))
    low, middle, high = found.activations
    least, most = least - (middle - low), most + high - middle
    memory = capacity(job.hardware).memory_bytes
    if memory is None:
        return Overhead(parts, least, most)
    left = 1 - (job.serving.free_gpu_memory_fraction or FRACTION)
    expected, fewest, most_free = (round(left * free) for free in _free(found, place, memory))
    return Overhead({**parts, LEFT: expected}, least + most_free, most + fewest)


def _tokens(found: Sized, serving: Serving, free: int) -> int:
    """Tokens of the cache, whole blocks."""
    block, most = serving.tokens_per_block or BLOCK, serving.max_total_tokens
    tokens = int(free * (serving.free_gpu_memory_fraction or FRACTION)) // found.token
    return min(tokens, most or tokens) // block * block


def engine_memory(found: Sized, serving: Serving, spec: ModelSpec, place: Topology, card: Capacity) -> EngineMemory:
    """What it logs when it starts; of its cache nothing where no GPU was given."""
    outside, kept = (sizes[0] for sizes in _taken(place).values())
    parts = {
        "weights_bytes": found.weights + kept,
        "activation_bytes": found.activations[1],
        "non_torch_bytes": outside,
    }
    if card.memory_bytes is None:
        return EngineMemory(**parts)
    tokens = _tokens(found, serving, _free(found, place, card.memory_bytes)[0])
    block, running = serving.tokens_per_block or BLOCK, serving.max_batch_size or BATCH
    each = -(-serving.context // block) * block
    most = max(spec.longest_sequence or serving.context, serving.context)
    return EngineMemory(
        **parts,
        cache_bytes=tokens * found.token,
        cache_blocks=tokens // block,
        cache_tokens=tokens,
        running_requests=running,
        longest_context=min(most, tokens),
        concurrency=min(float(running), tokens / each),
    )


def kv_cache(found: Sized, serving: Serving, engine: EngineMemory, place: Topology, card: Capacity) -> KvCache:
    """The cache that the job needs, and what the engine makes, with the range of what is not derived."""
    within = None
    if card.memory_bytes is not None:
        _, least, most = _free(found, place, card.memory_bytes)
        within = _tokens(found, serving, least) * found.token, _tokens(found, serving, most) * found.token
    return KvCache(
        bytes_per_token=found.token,
        needed_bytes=found.needed,
        available_bytes=engine.cache_bytes,
        available_tokens=engine.cache_tokens,
        available_range_bytes=within,
    )


def not_started(job: Job, memory: Memory) -> str:
    """What it says where it does not start, or cuts the context that the job asks for; nothing otherwise."""
    asked, engine = job.serving, memory.engine
    if engine is None or engine.cache_tokens is None:
        return ""
    if not engine.cache_tokens:
        beside = engine.weights_bytes + (engine.activation_bytes or 0) + (engine.non_torch_bytes or 0)
        what = f"{gib(beside)} of weights, activations and what lies outside torch"
        return f"TensorRT-LLM would not start: {what} leave no room for its cache"
    if engine.cache_tokens >= asked.context:
        return ""
    held = (
        f"free_gpu_memory_fraction {asked.free_gpu_memory_fraction or FRACTION:g} leaves its cache {engine.cache_tokens} tokens"
    )
    return f"TensorRT-LLM would cut max_seq_len to {engine.cache_tokens}, and refuse requests of {asked.context}: {held}"
