"""What TensorRT-LLM is, as an engine: its PyTorch backend.

A job that it serves is on a tape without operations: weights, the cache that it needs, and the pass that it profiles.
"""

from __future__ import annotations

from functools import partial

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.runtime.overheads import Overhead
from estimator.serving.engine import BETWEEN_NODES, WHOLE, Default, Engine, Fused, Logged, compute_type, pooled_advice, stored
from estimator.serving.layout import Passing, laid_out
from estimator.serving.tensorrt_llm import settings
from estimator.serving.tensorrt_llm.kernels import norms_in_reductions, quantized_before
from estimator.serving.tensorrt_llm.plan import engine_memory, kv_cache, not_started, overhead, sized
from estimator.serving.tensors import held
from estimator.serving.weights import check_format
from estimator.tape.gpu import Gpu
from estimator.tape.tape import ACTIVATION

LOADED = ("awq-", "fp8", "mxfp4", "nvfp4")
"""How the formats begin that it loads (modules/linear.py, `get_quant_method`)."""
UNMODELLED = ("state", "cross", "indexer", "chunk")
"""Kinds of layers whose cache is not modelled of it."""


def check(job: Job, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for what TensorRT-LLM does not do, or is not modelled doing."""
    asked = job.serving
    settings.release(asked.engine_version)
    settings.check_model(spec, asked.engine_version)
    if any(layer.kind in UNMODELLED for layer in spec.cache_layers):
        raise NotModelled(f"TensorRT-LLM's cache is not modelled of {spec.model_type} models", "serving.engine")
    if asked.weights == "fp32":
        raise NotModelled("tensorrt-llm in fp32 is not modelled; use bf16, or engine transformers", "serving.weights")
    experts = any(each.kind == "experts" for each in held(spec))
    if not experts and (asked.ep_size or 1) > 1:
        raise Contradiction(f"{spec.model_type} models have no experts: leave it out", "serving.ep_size")
    if not experts and asked.enable_attention_dp:
        raise NotModelled(
            f"attention of each rank's own is modelled of mixtures alone, and {spec.model_type} models are none",
            "serving.enable_attention_dp",
        )
    if place.tensor % (asked.ep_size or 1):
        raise Contradiction(f"{asked.ep_size} parts do not divide the {place.tensor} ranks of tensor", "serving.ep_size")
    check_format(asked, experts, "TensorRT-LLM")
    if asked.weights not in WHOLE and not asked.weights.startswith(LOADED):
        raise Contradiction(
            f"TensorRT-LLM loads no weights in {asked.weights}; write fp8, nvfp4, mxfp4 or awq-int4, or engine vllm",
            "serving.weights",
        )


def trace_tensorrt_llm(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu, file: object = None) -> Builder:
    """What one rank's GPU holds."""
    check(job, spec, place)
    plain = compute_type(job.serving)
    found = sized(job.serving, spec, place, plain, gpu)
    build = laid_out(spec, plain, gpu, found.weights, found.needed, Passing("profile_run", ACTIVATION, found.activations[1]))
    if job.hardware.nodes > 1:
        build.tape.remarks[BETWEEN_NODES] = None
    return build


def memory(job: Job, spec: ModelSpec, place: Topology, card: Capacity, gpu: Gpu) -> Logged:
    """What it logs when it starts, and its cache."""
    found = sized(job.serving, spec, place, compute_type(job.serving), gpu)
    logged = engine_memory(found, job.serving, spec, place, card)
    return logged, kv_cache(found, job.serving, logged, place, card)


def beside(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> Overhead:
    """What is not derived, and what its cache leaves free."""
    return overhead(job, sized(job.serving, spec, place, compute_type(job.serving), gpu), place)


def assumptions(asked: Serving, spec: ModelSpec) -> list[str]:
    """What is taken of its settings, and of its requests."""
    prompt, output = asked.lengths
    parts = (
        ["requests shared out evenly among the ranks: cache, tokens, requests and the longest context are those of one rank"]
        if asked.enable_attention_dp
        else []
    )
    return [
        *stored(asked),
        f"TensorRT-LLM {asked.engine_version}'s PyTorch backend, which profiles passes of {asked.max_num_tokens} tokens; without "
        "speculation, adapters, a cache in the host's memory and max_attention_window",
        f"time: prompts of {prompt} tokens and answers of {output}, no prompt read before, and always as many sequences",
        *parts,
    ]


TENSORRT_LLM = Engine(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    settings=frozenset(
        {
            "engine_version",
            "mixed_weights",
            "free_gpu_memory_fraction",
            "max_batch_size",
            "max_num_tokens",
            "tokens_per_block",
            "enable_attention_dp",
            "ep_size",
            "max_total_tokens",
            "disable_cuda_graph",
        }
    ),
    trace=trace_tensorrt_llm,
    memory=memory,
    assumptions=assumptions,
    not_modelled=(
        "the host's memory",
        "loading the checkpoint",
        "CUDA graphs by their number and size, and workspaces of kernels that it chooses by trial: what was logged is taken, "
        "mostly on GB200",
    ),
    smaller_weights=lambda weights: ("fp8", "nvfp4") if weights in WHOLE else (),
    advice=partial(pooled_advice, tokens="max_num_tokens", share="free_gpu_memory_fraction", smaller="fp8 or nvfp4"),
    instead={"gpu_memory_utilization": "serving.free_gpu_memory_fraction, of what is free"},
    defaults=(
        Default("engine_version", lambda *_: ".".join(map(str, settings.NEWEST)), "the newest release that is known"),
        Default("free_gpu_memory_fraction", lambda *_: settings.FRACTION, "TensorRT-LLM's own"),
        Default("max_batch_size", lambda *_: settings.BATCH, "TensorRT-LLM's own"),
        Default("max_num_tokens", lambda *_: settings.TOKENS, "TensorRT-LLM's own"),
        Default("tokens_per_block", lambda *_: settings.BLOCK, "TensorRT-LLM's own"),
    ),
    loads=lambda kind: kind if kind.startswith(LOADED) else None,
    not_started=not_started,
    runs=lambda spec: bool(spec.cache_layers),
    beside=beside,
    continuous=True,
    captures=lambda serving: not serving.disable_cuda_graph,
    timed=lambda serving, place: not serving.enable_attention_dp,
    fused=Fused(norms_in_reductions, quantized_before),
)
