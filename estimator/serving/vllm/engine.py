"""What vLLM is, as an engine.

A job that it serves is on a tape without operations: weights, the cache that it needs, and the pass of the profile run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families.build import Builder
from estimator.families.cache_layers import compresses
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.serving.engine import (
    BETWEEN_NODES,
    DERIVED,
    WHOLE,
    Default,
    Engine,
    Logged,
    compute_type,
    stored,
    texts_at_once,
    torch_advice,
)
from estimator.serving.layout import Lately, Passing, laid_out
from estimator.serving.tensors import check_output_groups, held
from estimator.serving.vllm import settings
from estimator.serving.vllm.adapters import check_adapters, said
from estimator.serving.vllm.apart import check_apart
from estimator.serving.vllm.apart import said as said_of_host
from estimator.serving.vllm.packed import BLOCK
from estimator.serving.vllm.plan import Sized, engine_memory, kv_cache, not_started, overhead, sized
from estimator.serving.vllm.pooling import check_runner
from estimator.serving.vllm.settings import NO_BITSANDBYTES, not_run, release
from estimator.serving.vllm.speculation import check_speculation, drafter_of
from estimator.serving.vllm.speculation import said as said_of_guesses
from estimator.serving.vllm.weights import replicas
from estimator.serving.weights import LOADED, check_format
from estimator.tape.gpu import Gpu
from estimator.tape.tape import ACTIVATION

BITSANDBYTES = ("nf4", "nf4-double", "fp4", "int8")
"""Formats of the library whose loader it had."""


def check(job: Job, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for what vLLM does not do, or is not modelled doing."""
    asked = job.serving
    release(asked.engine_version)
    if refused := not_run(spec, asked.engine_version):
        raise Contradiction(refused, "serving.engine" if spec.last_vllm == "none" else "serving.engine_version")
    if not spec.cache_layers and not spec.encodes:
        raise NotModelled(f"serving {spec.model_type} models is not modelled yet", "task")
    check_compressed(asked, spec, place)
    if spec.hears and release(asked.engine_version) < settings.NEWEST:
        newest = ".".join(map(str, settings.NEWEST))
        raise NotModelled(f"models that hear are modelled as vLLM {newest} runs them", "serving.engine_version")
    check_runner(asked, spec, place)
    check_stages(spec, place)
    experts = any(each.kind == "experts" for each in held(spec))
    if asked.enable_expert_parallel and not experts:
        raise Contradiction(f"{spec.model_type} models have no experts: leave it out", "serving.enable_expert_parallel")
    if copies := asked.data_parallel_size:
        if not experts and copies > 1:
            raise Contradiction(f"replicas of {spec.model_type} models share nothing: leave it out", "serving.data_parallel_size")
        if place.data % copies or (asked.enable_expert_parallel and copies != place.data):
            raise Contradiction(
                f"engines of {copies} replicas do not make up the {place.data} of parallelism.data", "serving.data_parallel_size"
            )
    if asked.language_model_only and spec.language_model is spec:
        raise Contradiction(f"{spec.model_type} models read nothing but texts: leave it out", "serving.language_model_only")
    check_adapters(asked, spec)
    check_apart(asked, spec, place)
    check_speculation(asked, spec, place)
    check_format(asked, experts, "vLLM")


def check_compressed(asked: Serving, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for what is not modelled of models with compressed keys, or that vLLM does not do."""
    if not compresses(spec.cache_layers):
        return
    kind, newest = spec.model_type, ".".join(map(str, settings.NEWEST))
    if release(asked.engine_version) < settings.NEWEST:
        raise NotModelled(f"{kind} models are modelled as vLLM {newest} runs them", "serving.engine_version")
    if asked.kv_cache != "fp8":
        raise Contradiction(f"vLLM keeps keys of {kind} models in FP8: write fp8, or leave it out", "serving.kv_cache")
    if asked.block_size not in (None, BLOCK):
        raise Contradiction(f"blocks of {kind} models have {BLOCK} tokens: leave it out", "serving.block_size")
    if asked.speculative_config is not None or place.pipeline > 1:
        what, field = ("guessing ahead", "speculative_config") if place.pipeline == 1 else ("a pipeline", "pipeline")
        where = f"serving.{field}" if place.pipeline == 1 else "parallelism.pipeline"
        raise NotModelled(f"{what} is not modelled of {kind} models in vLLM: leave it out", where)
    check_output_groups(spec, place)
    if not any(layer.kind == "indexer" for layer in spec.cache_layers):
        raise NotModelled(f"{kind} models of which no layer has an indexer are not modelled in vLLM", "model")


def check_stages(spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for a pipeline that a model does not go through."""
    if place.pipeline == 1:
        return
    text = spec.language_model
    if not spec.staged or any(layer.kind == "cross" for layer in spec.cache_layers):
        raise Contradiction(f"vLLM runs {spec.model_type} models in no pipeline: write pipeline 1", "parallelism.pipeline")
    if place.pipeline > text.num_hidden_layers:
        raise Contradiction(
            f"{place.pipeline} stages are more than the model's {text.num_hidden_layers} layers", "parallelism.pipeline"
        )


LATELY: Lately[Sized] = Lately()


def trace_vllm(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu, file: object = None) -> Builder:
    """What one rank's GPU holds."""
    check(job, spec, place)
    plain = compute_type(job.serving)
    found = sized(job.serving, spec, place, plain, gpu)
    LATELY.keep(found, job.serving, spec, place, gpu)
    build = laid_out(spec, plain, gpu, found.weights, found.needed, Passing("profile_run", ACTIVATION, found.activations))
    if release(job.serving.engine_version) >= NO_BITSANDBYTES and job.serving.weights in BITSANDBYTES:
        build.tape.remarks[f"vLLM {job.serving.engine_version} loads no weights of bitsandbytes; releases to 0.27 do"] = None
    if job.hardware.nodes > 1:
        build.tape.remarks[BETWEEN_NODES] = None
    if (copies := replicas(job.serving, place)) > 1:
        ranks = copies * place.tensor
        build.tape.remarks[f"experts over {ranks} ranks of one engine, which all {copies} replicas' tokens reach"] = None
    return build


def memory(job: Job, spec: ModelSpec, place: Topology, card: Capacity, gpu: Gpu) -> Logged:
    """What it logs when it starts, and its cache."""
    plain, stages = compute_type(job.serving), []
    for stage in range(place.pipeline):
        at = replace(place, stage=stage)
        stages.append(LATELY.known(job.serving, spec, at, gpu) or sized(job.serving, spec, at, plain, gpu))
    found = stages[place.stage]
    logged = engine_memory(found, stages, job.serving, spec, place, card, gpu)
    return logged, kv_cache(found, job.serving, logged, place, card, gpu)


def assumptions(asked: Serving, spec: ModelSpec) -> list[str]:
    """What is taken of its profile run, and of its requests."""
    prompt, output = asked.lengths
    if asked.runner == "pooling":
        return [
            *stored(asked),
            f"vLLM {asked.engine_version}'s pooling runner, in passes of {asked.max_num_batched_tokens} tokens and "
            f"{asked.max_num_seqs} texts; the body without an output layer, to which a reranker adds a small one",
            f"time: a pass over {texts_at_once(asked)} text(s) of {asked.context} tokens",
        ]
    return [
        *stored(asked),
        f"vLLM {asked.engine_version}'s profile run, of {asked.max_num_batched_tokens} tokens and "
        f"{asked.max_num_seqs} sequences; without {'' if asked.enable_lora else 'adapters, '}"
        f"{'' if asked.speculative_config else 'speculation and '}prefix caching of states",
        *said(asked),
        *said_of_guesses(asked),
        *said_of_host(asked),
        *([DERIVED] if compresses(spec.cache_layers) else []),
        f"time: prompts of {prompt} tokens and answers of {output}, no prompt read before, and always as many sequences",
    ]


VLLM = Engine(
    name="vllm",
    title="vLLM",
    settings=frozenset(
        {
            "engine_version",
            "gpu_memory_utilization",
            "mixed_weights",
            "runner",
            "language_model_only",
            "enable_lora",
            "max_loras",
            "max_lora_rank",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "enforce_eager",
            "enable_expert_parallel",
            "moe_mxfp8",
            "data_parallel_size",
            "decode_context_parallel_size",
            "cpu_offload_gb",
            "speculative_config",
            "speculative_acceptance",
        }
    ),
    trace=trace_vllm,
    memory=memory,
    assumptions=assumptions,
    not_modelled=(
        "the host's memory",
        "loading the checkpoint",
        "films, whose frames depend on the context, beside the largest images",
        "CUDA graphs by their number and size, those of what guesses among them: what was logged is taken",
    ),
    smaller_weights=lambda weights: ("fp8", "awq-int4") if weights in WHOLE else (),
    advice=partial(torch_advice, smaller="fp8 or awq-int4"),
    defaults=(
        Default("engine_version", lambda *_: ".".join(map(str, settings.NEWEST)), "the newest release that is known"),
        Default(
            "gpu_memory_utilization",
            lambda job, spec, card: settings.utilization(job.serving.engine_version),
            "that release's own",
        ),
        Default(
            "kv_cache",
            lambda job, spec, card: "fp8" if compresses(spec.cache_layers) else None,
            "vLLM's own of compressed keys",
        ),
        Default(
            "kv_cache",
            lambda job, spec, card: "fp32" if job.serving.weights == "fp32" else None,
            "what the model computes in",
        ),
        Default(
            "runner",
            lambda job, spec, card: job.serving.runner or ("pooling" if spec.encodes else "generate"),
            "what the model is made for",
        ),
        Default("max_loras", lambda job, *_: 1 if job.serving.enable_lora else None, "vLLM's own"),
        Default("max_lora_rank", lambda job, *_: 16 if job.serving.enable_lora else None, "vLLM's own"),
        Default("max_num_seqs", lambda job, spec, card: settings.max_num_seqs(card), "vLLM's own for this GPU"),
        Default(
            "max_num_batched_tokens",
            lambda job, spec, card: settings.max_num_batched_tokens(
                card, job.serving.engine_version, job.serving.context if spec.encodes else 0
            ),
            "vLLM's own for a server on this GPU",
        ),
    ),
    loads=lambda kind: kind if kind.startswith(LOADED) else None,
    not_started=not_started,
    runs=lambda spec: bool(spec.cache_layers) or spec.encodes,
    hears=True,
    beside=lambda job, spec, place, gpu: overhead(job.serving, place, gpu),
    share=lambda serving: serving.gpu_memory_utilization,
    continuous=True,
    captures=lambda serving: not serving.enforce_eager,
    timed=lambda serving, place: (
        replicas(serving, place) == 1 and not serving.cpu_offload_gb and serving.decode_context_parallel_size in (None, 1)
    ),
    pipelines=True,
    drafter=drafter_of,
)
