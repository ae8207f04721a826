"""What an engine is: how a job that it serves is laid out, what it holds of a GPU, and what is said of it.

Each engine has a folder here, and one value of `Engine`; `estimator/serving/engines.py` has the table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from estimator.contract.answer import Device, EngineMemory, KvCache, Memory
from estimator.contract.job import Job, Serving
from estimator.families.build import Builder
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.quantization.formats import FORMATS
from estimator.runtime.overheads import Overhead
from estimator.serving.drafts import Drafter
from estimator.serving.llamacpp.placement import WeightTensor
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu

WHOLE = ("bf16", "fp16", "fp32")
"""Types that have no blocks."""

BETWEEN_NODES = "what communicators take between nodes was not measured: as much is taken as within one"
Trace = Callable[[Job, ModelSpec, Topology, Gpu, tuple[WeightTensor, ...] | None], Builder]
"""(job, model, ranks, GPU, tensors of the file that names the model) -> what one rank holds, on a tape."""
Logged = tuple[EngineMemory | None, KvCache | None]
"""What an engine says of its memory when it starts, and its cache."""


DERIVED = (
    "compressed keys: the cache is as the engine's own planning has it; activations follow from its source, and no log of them; "
    "time takes their kernels one after another, where the engine runs some side by side"
)


@dataclass(frozen=True, slots=True)
class Default:
    """What an engine takes for a field of `Serving` that a job leaves out, of a model on a card, and whose choice that is.

    `value` is None where the engine says nothing.
    """

    field: str
    value: Callable[[Job, ModelSpec, Capacity], Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Fused:
    """What an engine runs in one kernel that others run in two, of a model and its ranks.

    Attributes:
        norms: whether the all-reduce of few bytes before a norm is that norm, too.
        quantized: of weights stored so, whether the kernel before a product of so many outputs and inputs quantizes what goes in.
    """

    norms: Callable[[DecoderSpec, Topology], bool] = lambda spec, place: False
    quantized: Callable[[DecoderSpec, Topology, str, int, int], bool] = lambda spec, place, weights, outputs, inputs: False


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """An engine, by its `name` in a job; `title` is how it is written in a sentence.

    Attributes:
        settings: fields of `Serving` that it reads and that not all engines have.
        instead: what to write instead of others' settings for which it has a name of its own.
        trace: puts a job on a tape; raises `InvalidJob` and `NotModelled` for what it does not do.
        memory: what it logs.
        assumptions: sentences of what is taken for granted.
        not_modelled: what the bytes leave out.
        smaller_weights: of a value of `serving.weights`, others that are worth a try in its place.
        advice: what would make a part of the peak smaller.
        defaults: what it takes unasked.
        loads: the value of `serving.weights` with which it serves what a checkpoint stores in a format; None where it cannot.
        not_started: what it says where it does not start, or has no room for one request of the job; nothing otherwise.
        runs: whether it serves a model whose forward pass is not written.
        hears: whether what hears is modelled in it.
        beside: what a process takes beside torch's allocations; None: what any process of torch does.
        allocates: whether torch's caching allocator hands out its memory.
        share: of a GPU's memory that it may take.
        continuous: whether it takes requests as they come and replays graphs of fused kernels.
        captures: whether a decoding step replays a CUDA graph; else its kernels are launched one by one.
        timed: whether the time of ranks that share a model out so is known.
        fused: what it runs in one kernel that others run in two.
        pipelines: whether its layers over the stages of a pipeline are modelled.
        drafter: what guesses tokens ahead, of a job's settings and model; None where nothing does.
        reads_gguf: whether it serves GGUF files.
        on_host: bytes in the host's memory, by what they are.
        devices: what each GPU holds, where that differs.
        fitting: settings that leave a part in the host's memory, and their values from the one that leaves least there.
        unasked: what it does where it does not fit and nobody chose any of these.
    """

    name: str
    title: str
    settings: frozenset[str]
    trace: Trace
    memory: Callable[[Job, ModelSpec, Topology, Capacity, Gpu], Logged]
    assumptions: Callable[[Serving, ModelSpec], list[str]]
    not_modelled: tuple[str, ...]
    smaller_weights: Callable[[str], tuple[str, ...]]
    advice: Callable[[str, Serving], str]
    instead: Mapping[str, str] = field(default_factory=dict)
    loads: Callable[[str], str | None] = lambda kind: None
    defaults: tuple[Default, ...] = ()
    not_started: Callable[[Job, Memory], str] = lambda job, memory: ""
    runs: Callable[[ModelSpec], bool] = lambda spec: False
    hears: bool = False
    beside: Callable[[Job, ModelSpec, Topology, Gpu], Overhead] | None = None
    allocates: bool = False
    share: Callable[[Serving], float] = lambda serving: 1.0
    continuous: bool = False
    captures: Callable[[Serving], bool] = lambda serving: True
    timed: Callable[[Serving, Topology], bool] = lambda serving, place: True
    fused: Fused = field(default_factory=Fused)
    pipelines: bool = False
    drafter: Callable[[Serving, ModelSpec], Drafter | None] = lambda serving, spec: None
    reads_gguf: bool = False
    on_host: Callable[[Job, ModelSpec, tuple[WeightTensor, ...] | None], dict[str, int]] | None = None
    devices: Callable[[Job, ModelSpec, tuple[WeightTensor, ...] | None], list[Device]] | None = None
    fitting: Callable[[Serving, ModelSpec], Iterable[tuple[str, list[int]]]] = lambda asked, spec: ()
    unasked: str = ""


def compute_type(serving: Serving) -> DType:
    """What a served model computes in, and what of it is not quantized is stored in.

    llama.cpp's kernels read blocks of a GGUF file in float16.
    """
    if serving.weights in WHOLE:
        return dtypes.BY_NAME[serving.weights]
    return dtypes.bfloat16 if serving.weights in FORMATS else dtypes.float16


def texts_at_once(serving: Serving) -> int:
    """Texts of `context` tokens that one pass makes vectors of: as many as it has tokens for, at most `concurrency`."""
    most = serving.max_num_batched_tokens or serving.chunked_prefill_size or serving.context
    return max(1, min(serving.concurrency, most // serving.context))


def stored(asked: Serving) -> list[str]:
    """What of a quantized checkpoint is not quantized."""
    if asked.weights in WHOLE:
        return []
    if asked.weights in FORMATS and not FORMATS[asked.weights].linears:
        return [f"experts in {asked.weights} as a checkpoint stores them; all else in bf16"]
    others = "".join(f", {', '.join(names)} in {name}" for name, names in (asked.mixed_weights or {}).items())
    return [f"weights in {asked.weights} as a checkpoint stores them{others}; embeddings, norms and the output layer in bf16"]


def torch_advice(part: str, asked: Serving, smaller: str = "int8 or nf4-double") -> str:
    """What makes a part of a server's peak smaller that computes with torch. `smaller`: values of `serving.weights`."""
    if part == "kv_cache":
        return "a shorter serving.context, or less serving.concurrency"
    if part == "parameters":
        narrower = f"serving.weights {smaller}; or " if asked.weights in WHOLE else ""
        return f"{narrower}parallelism.tensor over more GPUs"
    return "a shorter serving.context"


def pooled_advice(part: str, asked: Serving, tokens: str, share: str, smaller: str, also: str = "") -> str:
    """What makes a part of the peak smaller of a server whose cache is a share of the GPU, or that share larger.

    `tokens` and `share`: its settings of a pass and of the cache. `smaller`: values of `serving.weights`. `also`: what else makes
    room for weights.
    """
    if part == "activations":
        return f"a smaller serving.{tokens}"
    if part == "kv_cache":
        narrow = "serving.kv_cache fp8; or " if asked.kv_cache in WHOLE else ""
        return f"{narrow}a larger serving.{share}; or a shorter serving.context, or less serving.concurrency"
    narrower = f"serving.weights {smaller}; or " if asked.weights in WHOLE else ""
    return f"{narrower}{also}parallelism.tensor over more GPUs"
