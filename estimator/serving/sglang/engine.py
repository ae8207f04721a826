"""What SGLang is, as an engine.

A job that it serves is on a tape without operations: weights, the pools that it needs, and the widest layer of a prompt.
"""

from __future__ import annotations

from functools import partial

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families.build import Builder
from estimator.families.cache_layers import compresses
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.runtime.overheads import Overhead
from estimator.serving.engine import BETWEEN_NODES, DERIVED, WHOLE, Default, Engine, Logged, compute_type, pooled_advice, stored
from estimator.serving.layout import Lately, Passing, laid_out
from estimator.serving.sglang import compressed, settings, speculation
from estimator.serving.sglang.backend import check_backend, runs_modules, tokens_at_once
from estimator.serving.sglang.compressed import check_compressed
from estimator.serving.sglang.plan import Sized, engine_memory, kv_cache, not_started, overhead, sized
from estimator.serving.sglang.ranks import check_ranks, ranks_of, said
from estimator.serving.tensors import held
from estimator.serving.weights import LOADED, check_format
from estimator.tape.gpu import Gpu
from estimator.tape.tape import ACTIVATION

SETTINGS = frozenset(
    {
        "engine_version",
        "mixed_weights",
        "mem_fraction_static",
        "chunked_prefill_size",
        "max_running_requests",
        "max_total_tokens",
        "page_size",
        "attn_dp_size",
        "ep_size",
        "cuda_graph_max_bs",
        "disable_cuda_graph",
        "disable_radix_cache",
        "swa_full_tokens_ratio",
        "mamba_full_memory_ratio",
    }
    | speculation.SETTINGS
)


MODULES = "transformers' modules with SGLang's attention, which has no implementation of its own of these models"

VECTORS = "a checkpoint of an embedder, without a head: what SGLang reads as BertModel or XLMRobertaModel"


def check(job: Job, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for what SGLang does not do, or is not modelled doing."""
    asked = job.serving
    settings.release(asked.engine_version)
    if (not spec.cache_layers or spec.embeds) and not spec.pooled_in_sglang:
        raise NotModelled(f"serving {spec.model_type} models is not modelled yet", "task")
    check_compressed(asked, spec, place)
    check_backend(job, spec)
    check_ranks(asked, spec, place)
    if asked.weights == "fp32":
        raise NotModelled("sglang in fp32 is not modelled; use bf16, or engine transformers", "serving.weights")
    states = any(layer.kind == "state" for layer in spec.cache_layers)
    if asked.mamba_full_memory_ratio is not None and not states:
        raise Contradiction(f"{spec.model_type} models have no states: leave it out", "serving.mamba_full_memory_ratio")
    if asked.swa_full_tokens_ratio is not None and spec.window_pool is None and not compresses(spec.cache_layers):
        raise Contradiction(
            f"SGLang keeps all tokens of every layer of {spec.model_type} models: leave it out", "serving.swa_full_tokens_ratio"
        )
    speculation.check_speculation(asked, spec)
    check_format(asked, any(each.kind == "experts" for each in held(spec)), "SGLang")


LATELY: Lately[Sized] = Lately()


def trace_sglang(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu, file: object = None) -> Builder:
    """What one rank's GPU holds."""
    check(job, spec, place)
    plain = compute_type(job.serving)
    ranks = ranks_of(job.serving, place)
    found = sized(job.serving, spec, ranks, plain, gpu)
    LATELY.keep(found, job.serving, spec, ranks, gpu)
    build = laid_out(spec, plain, gpu, found.weights, found.needed, Passing("profile_run", ACTIVATION, found.activations))
    if job.hardware.nodes > 1:
        build.tape.remarks[BETWEEN_NODES] = None
    return build


def memory(job: Job, spec: ModelSpec, place: Topology, card: Capacity, gpu: Gpu) -> Logged:
    """What it logs when it starts, and its pools."""
    asked, plain, ranks = job.serving, compute_type(job.serving), ranks_of(job.serving, place)
    places = [ranks_of(asked, place, stage) for stage in range(place.pipeline)]
    stages = [LATELY.known(asked, spec, at, gpu) or sized(asked, spec, at, plain, gpu) for at in places]
    logged = engine_memory(stages, asked, spec, ranks, card, gpu)
    return logged, kv_cache(stages[place.stage], asked, logged, ranks, card, gpu)


def beside(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> Overhead:
    """What is gone before the weights, and what it leaves free."""
    ranks = ranks_of(job.serving, place)
    known = LATELY.known(job.serving, spec, ranks, gpu)
    found = known or sized(job.serving, spec, ranks, compute_type(job.serving), gpu)
    return overhead(job, spec, ranks, found.activations, gpu)


def assumptions(asked: Serving, spec: ModelSpec) -> list[str]:
    """What is taken of its settings, and of its requests."""
    prompt, output = asked.lengths
    return [
        *stored(asked),
        f"SGLang {asked.engine_version}'s pools, without {'' if asked.speculative_algorithm else 'speculation, '}adapters and "
        "offloading",
        *said(asked),
        *speculation.said(asked),
        *([DERIVED] if compresses(spec.cache_layers) else []),
        *([VECTORS] if spec.pooled_in_sglang else []),
        *([MODULES] if runs_modules(spec) else []),
        f"passes of {tokens_at_once(asked, spec)} tokens of prompts; what is left free beside them is enough for CUDA graphs and "
        "sampling, as SGLang takes for granted",
        f"time: prompts of {prompt} tokens and answers of {output}, no prompt read before, and always as many sequences",
    ]


SGLANG = Engine(
    name="sglang",
    title="SGLang",
    settings=SETTINGS,
    trace=trace_sglang,
    memory=memory,
    assumptions=assumptions,
    not_modelled=(
        "the host's memory",
        "loading the checkpoint",
        "what CUDA graphs and sampling take of what mem_fraction_static leaves free",
    ),
    smaller_weights=lambda weights: ("fp8", "awq-int4") if weights in WHOLE else (),
    advice=partial(
        pooled_advice,
        tokens="chunked_prefill_size",
        share="mem_fraction_static",
        smaller="fp8 or awq-int4",
        also="a larger serving.mem_fraction_static; or ",
    ),
    instead={"gpu_memory_utilization": "serving.mem_fraction_static"},
    defaults=(
        Default(
            "engine_version", lambda job, spec, card: ".".join(map(str, settings.NEWEST)), "the newest release that is known"
        ),
        *speculation.DEFAULTS,
        Default("page_size", compressed.page_size, "its kernels' of compressed keys"),
        Default("kv_cache", compressed.kv_cache, "SGLang's own of compressed keys"),
        Default("max_running_requests", compressed.max_running_requests, "SGLang's own for the model"),
        Default("swa_full_tokens_ratio", compressed.swa_full_tokens_ratio, "SGLang's own for the model"),
        Default("page_size", settings.page_size, "its kernels' where an indexer chooses tokens"),
        Default("kv_cache", settings.kv_cache, "SGLang's own on Blackwell where an indexer chooses tokens"),
        Default("chunked_prefill_size", settings.chunked_prefill_size, "SGLang's own for this GPU"),
        Default("cuda_graph_max_bs", settings.cuda_graph_max_bs, "SGLang's own for this GPU"),
        Default("mem_fraction_static", settings.mem_fraction_static, "SGLang's own for this GPU and what runs on it"),
    ),
    loads=lambda kind: kind if kind.startswith(LOADED) else None,
    not_started=not_started,
    runs=lambda spec: bool(spec.cache_layers) or spec.pooled_in_sglang,
    hears=True,
    beside=beside,
    continuous=True,
    pipelines=True,
    captures=settings.captures,
    timed=lambda serving, place: (serving.attn_dp_size or 1) == 1,
    drafter=speculation.drafter_of,
)
