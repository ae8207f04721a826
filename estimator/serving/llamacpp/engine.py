"""What llama.cpp is, as an engine, and Ollama, which runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from estimator.contract.answer import Device, KvCache
from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families import count
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.quantization.gguf_kinds import MIXTURES
from estimator.serving.engine import WHOLE, Default, Engine, Logged
from estimator.serving.layout import Passing, laid_out
from estimator.serving.llamacpp import ollama
from estimator.serving.llamacpp.cache import UBATCH, layer_caches, token_layers
from estimator.serving.llamacpp.devices import check_devices
from estimator.serving.llamacpp.drafts import MOST, check_draft, outputs, with_draft
from estimator.serving.llamacpp.models import check_graph
from estimator.serving.llamacpp.placement import Placed, WeightTensor, placed
from estimator.serving.llamacpp.types import NAMES
from estimator.tape import dtypes
from estimator.tape.gpu import Gpu
from estimator.tape.tape import TEMPORARY


def check(job: Job, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for what llama.cpp does not do, or is not modelled doing."""
    asked = job.serving
    check_graph(spec, "serving.engine")
    check_draft(asked, spec)
    if spec.encodes and asked.ubatch and asked.ubatch < asked.context:
        raise Contradiction(
            f"llama.cpp reads a text of an encoder in one pass: {asked.ubatch} tokens are less than the context of "
            f"{asked.context}; leave it out, or write a shorter context",
            "serving.ubatch",
        )
    if job.hardware.nodes > 1:
        raise NotModelled("llama.cpp on several nodes is not modelled yet; one is", "hardware.nodes")
    if place.tensor > 1:
        raise Contradiction("llama.cpp divides layers among GPUs: leave it out, and write hardware.gpus", "parallelism.tensor")
    if asked.weights not in NAMES and asked.weights.upper() not in MIXTURES:
        raise Contradiction(f"{asked.weights} is no kind of GGUF file: write q4_k_m, or another", "serving.weights")
    if asked.weights_group or asked.unquantized:
        raise Contradiction("a GGUF file's kind says which tensor has which type: leave both out", "serving.weights_group")
    if "fp8" in (asked.kv_cache, asked.values_cache):
        raise Contradiction("a cache in fp8 is vLLM's: write fp16, or q8_0", "serving.kv_cache")
    if (asked.values_cache or asked.kv_cache) not in NAMES and asked.flash_attention is False:
        raise Contradiction("a cache of values in blocks needs flash attention", "serving.flash_attention")
    if asked.flash_attention is False and spec.language_model.can.graph == "gemma-4":
        raise NotModelled(
            "without flash attention llama.cpp fills up Gemma 4's values to its widest layer: not modelled, leave it out",
            "serving.flash_attention",
        )
    if job.hardware.without_gpu and (asked.gpu_layers or asked.gpu_layers_draft or asked.tensor_split):
        raise Contradiction("there is no GPU for layers: leave it out, or name a gpu in place of ram", "serving.gpu_layers")
    check_devices(asked, _gpus(job))


def _gpus(job: Job) -> int:
    """GPUs of a job: none where it says how much RAM a machine without one has."""
    return 0 if job.hardware.without_gpu else job.hardware.gpus


def where(job: Job, spec: ModelSpec, tensors: tuple[WeightTensor, ...] | None) -> Placed:
    """Where everything of a job lies."""
    return _placed(job.serving.model_dump_json(), spec.language_model, _gpus(job), tensors)


@lru_cache(maxsize=32)
def _placed(serving: str, spec: ModelSpec, gpus: int, tensors: tuple[WeightTensor, ...] | None) -> Placed:
    """Remembered, since an answer asks for it several times; `serving` is JSON, as settings with lists have no hash."""
    asked = Serving.model_validate_json(serving)
    return with_draft(placed(asked, spec, gpus, tensors, cuda=gpus > 0), asked, gpus)


def trace_llamacpp(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu, tensors: tuple[WeightTensor, ...] | None) -> Builder:
    """What the fullest GPU holds, or the RAM where there is none, on a tape without operations. `tensors`: those of a file that
    was named."""
    check(job, spec, place)
    found, text = where(job, spec, tensors).fullest, spec.language_model
    graph = Passing("compute_buffer", TEMPORARY, found.compute)
    build = laid_out(text, dtypes.float16, gpu, found.weights, found.cache, graph)
    if text is not spec:
        senses = " and ".join(["images"] * spec.sees + ["sound"] * spec.hears)
        tower = 2 * (count(spec) - count(text))
        build.tape.remarks[
            f"texts alone: llama.cpp reads {senses} with a file of its own (mmproj), {tower / 2**30:.2f} GiB in fp16, not counted"
        ] = None
    return build


def cache(job: Job, spec: ModelSpec, place: Topology, card: Capacity, gpu: Gpu) -> Logged:
    """The cache that the job needs, all of it, also what lies in the host's memory."""
    text = spec.language_model
    if text.encodes:
        return None, None
    per_token = sum(token_layers(job.serving, text))
    needed = sum(layer_caches(job.serving, text))
    return None, KvCache(bytes_per_token=per_token, needed_bytes=needed, available_bytes=None, available_tokens=None)


def devices(job: Job, spec: ModelSpec, tensors: tuple[WeightTensor, ...] | None) -> list[Device]:
    """What each GPU holds, as llama.cpp logs it."""
    return [
        Device(gpu=i, layers=gpu.layers, weights_bytes=gpu.weights, cache_bytes=gpu.cache, compute_bytes=gpu.compute)
        for i, gpu in enumerate(where(job, spec, tensors).gpus)
    ]


UNASKED = (
    "where nobody says how many layers or experts go to the GPU, llama.cpp's server and Ollama leave by themselves what does not "
    "fit in the host's memory, with 1 GiB of each GPU free (--fit), and are slower: the verdict is of all on the GPU"
)
"""common/fit.cpp: `--fit on`, `--fit-target 1024`."""


def fitting(asked: Serving, spec: ModelSpec) -> Iterator[tuple[str, list[int]]]:
    """Settings that leave a part in the host's memory, and their values from the one that leaves least there."""
    chosen = asked.cpu_moe or asked.override_tensor or asked.n_cpu_moe is not None or asked.gpu_layers is not None
    if chosen:
        return
    from estimator.families.experts import MoeSpec

    text = spec.language_model
    layers = text.depth
    if isinstance(text, MoeSpec) or getattr(text, "enable_moe_block", False):
        yield "n_cpu_moe", list(range(1, layers + 1))
    yield "gpu_layers", list(range(layers, -1, -1))


def assumptions(asked: Serving, spec: ModelSpec) -> list[str]:
    """What is taken of llama.cpp."""
    attention = "flash attention" if asked.flash_attention is not False else "attention that holds its scores"
    caches = "one cache for all sequences" if asked.kv_unified else "each sequence with a cache of its own"
    if spec.language_model.encodes:
        return [
            f"llama.cpp of October 2026, {attention}, passes of {asked.ubatch} tokens; an encoder, whose vectors are the mean of "
            "a text's, keeps no cache; its time is not modelled"
        ]
    said = [f"llama.cpp of October 2026, {attention}, passes of {asked.ubatch} tokens, {caches}"]
    if asked.outputs is None:
        said.append(
            "logits of all tokens of a pass: llama.cpp's server of 2026 makes one for each sequence, which is serving.outputs"
        )
    if asked.model_draft is not None:
        said.append(
            f"a smaller model, in {asked.weights_draft or asked.weights}, guesses {asked.spec_draft_n_max or MOST} tokens ahead, "
            "with as long a context and a cache of its own in fp16; times with it are not modelled"
        )
    if asked.gpu_layers == 0:
        said.append("no layer on a GPU")
    elif asked.gpu_layers is not None:
        said.append(f"{asked.gpu_layers} layers on the GPU, the last ones, of which the output counts as one")
    if asked.cpu_moe or asked.n_cpu_moe:
        whose = "all layers" if asked.cpu_moe else f"the first {asked.n_cpu_moe} layers"
        said.append(f"experts of {whose} in the host's memory, sent to the first GPU for passes of 32 tokens or more")
    return said


def _loads(stored: str) -> str | None:
    """The kind of GGUF file with what a checkpoint stores: of gpt-oss as published, whose experts alone are in MXFP4, its own."""
    kind = {"mxfp4": "mxfp4_moe"}.get(stored, stored)
    return kind if kind in NAMES or kind.upper() in MIXTURES else None


_LESS = "serving.gpu_layers, which leaves some in the host's memory"


def advice(part: str, asked: Serving) -> str:
    """What makes a part of the GPU's share smaller."""
    if part == "kv_cache":
        narrow = "serving.kv_cache q8_0; or " if asked.kv_cache == "fp16" else ""
        return f"{narrow}a shorter serving.context, or less serving.concurrency"
    smaller = (
        "a smaller kind in serving.weights, such as q4_k_m; or " if part == "parameters" else "a smaller serving.ubatch; or "
    )
    return smaller.removesuffix("; or ") if asked.gpu_layers == 0 else f"{smaller}{_LESS}"


def left_on_host(job: Job, spec: ModelSpec, tensors: tuple[WeightTensor, ...] | None) -> dict[str, int]:
    """Bytes in the host's memory beside a GPU, by what they are."""
    if job.hardware.without_gpu:
        return {}
    host = where(job, spec, tensors).host
    return {part: nbytes for part, nbytes in host.items() if part != "kv_cache"} if spec.language_model.encodes else host


LLAMA_CPP = Engine(
    name="llama.cpp",
    title="llama.cpp",
    settings=frozenset(
        {
            "values_cache",
            "gpu_layers",
            "tensor_split",
            "cpu_moe",
            "n_cpu_moe",
            "override_tensor",
            "kv_unified",
            "swa_full",
            "ubatch",
            "outputs",
            "flash_attention",
            "model_draft",
            "weights_draft",
            "gpu_layers_draft",
            "spec_draft_n_max",
        }
    ),
    trace=trace_llamacpp,
    memory=cache,
    assumptions=assumptions,
    not_modelled=("what CUDA's kernels take from ggml's pool", "loading the file"),
    smaller_weights=lambda weights: ("q4_k_m",) if weights in (*WHOLE, "q8_0") else (),
    advice=advice,
    defaults=(
        Default(
            "outputs",
            lambda job, spec, card: None if spec.encodes else outputs(job.serving),
            "llama.cpp's server's: of each sequence every guess, and one more",
        ),
        Default("gpu_layers", lambda job, spec, card: 0 if card.ram else None, "there is no GPU"),
        Default(
            "ubatch",
            lambda job, spec, card: job.serving.context if spec.encodes else None,
            "a text of an encoder is read in one pass: --ubatch-size is its context",
        ),
        Default("ubatch", lambda *_: UBATCH, "llama.cpp's own"),
        Default("flash_attention", lambda *_: True, "llama.cpp's own"),
        Default("kv_cache", lambda *_: "fp16", "llama.cpp's own"),
    ),
    loads=_loads,
    runs=lambda spec: spec.language_model.can.graph is not None,
    hears=True,
    reads_gguf=True,
    on_host=left_on_host,
    devices=devices,
    fitting=fitting,
    unasked=UNASKED,
)
OLLAMA = replace(
    LLAMA_CPP,
    name="ollama",
    title="Ollama",
    assumptions=lambda asked, spec: [
        f"Ollama 0.33 as it runs llama.cpp, with {asked.concurrency} slots",
        *assumptions(asked, spec),
    ],
    defaults=(
        Default("context", ollama.context, "the engine's own for this much memory, no more than the model's"),
        Default("weights", lambda *_: ollama.WEIGHTS, "what Ollama's plain tags are"),
        *LLAMA_CPP.defaults,
    ),
    loads=lambda kind: ollama.LOADED.get(kind) or _loads(kind),
)
