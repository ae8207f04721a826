"""A serving job as a run on a tape, and what the engine makes of the memory that is left."""

from __future__ import annotations

from collections.abc import Callable

from estimator.contract.answer import KvCache
from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families import build_model
from estimator.families.build import Builder
from estimator.families.heads import CausalLM
from estimator.families.kernels import EAGER, SERVER, Kernels
from estimator.families.kv_cache import HeldCache, bytes_per_token, growing
from estimator.families.protocols import Cache, Quantization
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.topology import Topology, tensor_shard
from estimator.quantization.formats import FORMATS, check_group
from estimator.quantization.packed import Packed
from estimator.serving.llamacpp import cache_bytes, layer_caches
from estimator.serving.step import Requests, serve
from estimator.serving.vllm.settings import refuse_elsewhere
from estimator.serving.vllm.trace import trace_vllm
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import AMPERE, Gpu
from estimator.tape.tape import Tape
from estimator.training.quantization import BITSANDBYTES, TRAINED, storage

CHUNK = 2048
"""Tokens of prompts that vLLM takes in one pass (`max_num_batched_tokens`, default of the offline engine's V1 scheduler)."""


WHOLE = ("bf16", "fp16", "fp32")
"""Types that have no blocks."""


def compute_type(serving: Serving) -> DType:
    """What a served model computes in, and what of it is not quantized is stored in.

    llama.cpp's kernels read blocks in float16.
    """
    if serving.engine == "llama.cpp" and serving.weights not in WHOLE:
        return dtypes.float16
    return dtypes.bfloat16 if serving.weights in FORMATS else dtypes.BY_NAME[serving.weights]


def trace_serving(job: Job, spec: ModelSpec, topology: Topology, gpu: Gpu = AMPERE) -> Builder:
    """Play prefill and decoding on a new tape, for one rank; of vLLM what its profile run finds."""
    asked = job.serving
    vllm = asked.engine == "vllm"
    if asked.kv_cache not in (*WHOLE, "fp8") or asked.values_cache:
        raise Contradiction(
            "a cache in blocks, or of two types, is llama.cpp's: write bf16, or engine llama.cpp", "serving.kv_cache"
        )
    if asked.weights not in WHOLE and asked.weights not in FORMATS:
        raise Contradiction(f"{asked.weights} is a kind of GGUF file: write engine llama.cpp", "serving.weights")
    for name in ("gpu_layers", "ubatch", "outputs", "flash_attention"):
        if getattr(asked, name) is not None:
            raise Contradiction("it is llama.cpp's: leave it out, or write engine llama.cpp", f"serving.{name}")
    if vllm:
        return trace_vllm(job, spec, topology, compute_type(asked), gpu)
    refuse_elsewhere(asked)
    if topology.tensor > 1:
        raise NotModelled("tensor parallelism is modelled for engine vllm only yet", "parallelism.tensor")
    if not isinstance(spec, DecoderSpec) or not spec.cached:
        raise NotModelled(f"serving {spec.model_type} models is not modelled yet", "task")
    plain = compute_type(asked)
    if dtypes.BY_NAME[asked.kv_cache] is not plain:
        raise Contradiction(
            f"transformers keeps its cache in the model's type; write {asked.weights}, or engine vllm", "serving.kv_cache"
        )
    own = growing(spec)
    build, model = _built(job, spec, gpu, lambda tape: own())
    serve(build, model, Requests(asked.concurrency, asked.context))
    return build


def trace_speed(job: Job, spec: DecoderSpec, topology: Topology, gpu: Gpu = AMPERE) -> Tape:
    """The kernels of a job that `trace_serving` has played, as its engine runs them, on a new tape: a prompt in one pass (in
    transformers those of a batch), then a decoding step of answers that are half written."""
    asked = job.serving
    vllm = asked.engine == "vllm"
    prompt, output = asked.lengths
    length = min(prompt + output // 2, spec.window or asked.context)
    dtype = dtypes.BY_NAME[asked.kv_cache]
    shard = tensor_shard(spec, topology.tensor)
    build, model = _built(job, shard, gpu, lambda tape: HeldCache(length, dtype, not vllm), SERVER if vllm else EAGER)
    serve(build, model, Requests(asked.concurrency, prompt), prompts(asked))
    return build.tape


def prompts(serving: Serving) -> int:
    """How many prompts are read at once: vLLM takes requests as they come, `generate` of transformers a batch of them."""
    return 1 if serving.engine == "vllm" else serving.concurrency


def _built(
    job: Job, shard: DecoderSpec, gpu: Gpu, cache: Callable[[Tape], Cache], kernels: Kernels = EAGER
) -> tuple[Builder, CausalLM]:
    """The model that one rank serves, loaded on a new tape. `cache`: makes that of a layer."""
    asked = job.serving
    tape = Tape(gpu)
    tape.begin("load")
    build = Builder(
        tape,
        compute_type(asked),
        attention="flash_attention_2" if asked.engine == "vllm" else "sdpa",
        kernels=kernels,
        quantization=_quantization(asked),
        whole=tuple(asked.unquantized or ()),
        served=True,
        cache=lambda: cache(tape),
    )
    model = build_model(shard, build, "causal-lm")
    assert isinstance(model, CausalLM)
    return build, model


def _quantization(serving: Serving) -> Quantization | None:
    """How the weights are stored: as bitsandbytes and HQQ unpack them, or as a server's kernels read them."""
    name, group = serving.weights, serving.weights_group
    if name not in FORMATS:
        if group or serving.unquantized:
            raise Contradiction(f"nothing is quantized in {name}: leave groups and exceptions out", "serving.weights_group")
        return None
    check_group(name, group, "serving.weights_group")
    if not FORMATS[name].linears:
        raise Contradiction(
            f"{name} stores a mixture's experts, and these models have none: write nvfp4 or fp8", "serving.weights"
        )
    transformers = serving.engine == "transformers"
    if name in BITSANDBYTES or (transformers and name in TRAINED and name.startswith("hqq")):
        return storage(name, group, "serving.weights_group")
    if transformers:
        raise NotModelled(f"{name} in transformers is not modelled yet; bitsandbytes and HQQ are", "serving.weights")
    if name.startswith(("hqq", "eetq")):
        raise Contradiction(f"vLLM loads no weights in {name}; write engine transformers, or gptq-int4", "serving.weights")
    return Packed(name, group)


def kv_cache(serving: Serving, spec: DecoderSpec) -> KvCache:
    """The cache that a job of llama.cpp or transformers needs."""
    if serving.engine == "llama.cpp":
        return _llamacpp_cache(serving, spec)
    per_token = bytes_per_token(spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim, dtypes.BY_NAME[serving.kv_cache])
    needed = per_token * serving.context * serving.concurrency
    return KvCache(bytes_per_token=per_token, needed_bytes=needed, available_bytes=None, available_tokens=None)


def _llamacpp_cache(serving: Serving, spec: DecoderSpec) -> KvCache:
    """All of it, also what lies in the host's memory."""
    per_token = spec.num_hidden_layers * cache_bytes(serving, spec)
    needed = sum(layer_caches(serving, spec))
    return KvCache(bytes_per_token=per_token, needed_bytes=needed, available_bytes=None, available_tokens=None)
