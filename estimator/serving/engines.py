"""The engines that serve a model, one value each."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Parallelism, Serving
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.quantization.formats import FORMATS
from estimator.serving.drafts import Drafter
from estimator.serving.engine import WHOLE, Engine
from estimator.serving.llamacpp.engine import LLAMA_CPP, OLLAMA
from estimator.serving.llamacpp.placement import WeightTensor
from estimator.serving.sglang.engine import SGLANG
from estimator.serving.tensorrt_llm.engine import TENSORRT_LLM
from estimator.serving.transformers.engine import TRANSFORMERS
from estimator.serving.vllm.engine import VLLM
from estimator.tape.gpu import AMPERE, Gpu

ENGINES = {each.name: each for each in (VLLM, SGLANG, TENSORRT_LLM, TRANSFORMERS, LLAMA_CPP, OLLAMA)}
"""By their names in a job."""
SPREADS = frozenset({"data", "tensor", "pipeline", "context", "expert"})
"""What a server reads of `parallelism`, if nothing else is written there."""


def engine_of(job: Job) -> Engine:
    """The engine that serves a job."""
    return ENGINES[job.serving.engine]


def drafter_of(job: Job, spec: ModelSpec) -> Drafter | None:
    """What guesses tokens ahead for a job that serves; None where nothing does."""
    return engine_of(job).drafter(job.serving, spec)


def served_by(job: Job) -> Engine | None:
    """The engine that serves a job; None for one that trains."""
    return engine_of(job) if job.task == "serve" else None


def trace_serving(
    job: Job, spec: ModelSpec, place: Topology, gpu: Gpu = AMPERE, tensors: tuple[WeightTensor, ...] | None = None
) -> Builder:
    """What one rank holds and plays, on a new tape. Raises `InvalidJob` and `NotModelled` for what its engine does not do."""
    asked, engine = job.serving, engine_of(job)
    if "fp4" in (asked.kv_cache, asked.values_cache) and engine not in (SGLANG, TENSORRT_LLM):
        raise Contradiction("a cache in fp4 is SGLang's and TensorRT-LLM's: write fp8, or engine sglang", "serving.kv_cache")
    if not engine.reads_gguf:
        if asked.kv_cache not in (*WHOLE, "fp8", "fp4") or asked.values_cache:
            raise Contradiction(
                "a cache in blocks, or of two types, is llama.cpp's: write bf16, or engine llama.cpp", "serving.kv_cache"
            )
        if asked.weights not in WHOLE and asked.weights not in FORMATS:
            raise Contradiction(f"{asked.weights} is a kind of GGUF file: write engine llama.cpp", "serving.weights")
    if place.pipeline > 1 and not engine.pipelines:
        raise NotModelled(f"{engine.title} over a pipeline is not modelled; vLLM is", "parallelism.pipeline")
    _refuse_others(asked, engine)
    if asked.speculative_acceptance is not None and engine.drafter(asked, spec) is None:
        raise Contradiction("nothing is guessed ahead: leave it out, or say what guesses", "serving.speculative_acceptance")
    return engine.trace(job, spec, place, gpu, tensors)


def _refuse_others(asked: Serving, engine: Engine) -> None:
    """Raise `Contradiction` for a setting that only other engines have."""
    for name in sorted(_of_others(engine)):
        if getattr(asked, name) == Serving.model_fields[name].default:
            continue
        owners = [other for other in ENGINES.values() if name in other.settings]
        whose = " and ".join(f"{other.title}'s" for other in owners)
        own = f"{engine.title}'s is {engine.instead[name]}" if name in engine.instead else "leave it out"
        raise Contradiction(f"it is {whose}: {own}, or write engine {owners[0].name}", f"serving.{name}")


def _of_others(engine: Engine) -> frozenset[str]:
    """Settings that only other engines have."""
    return frozenset().union(*(other.settings for other in ENGINES.values())) - engine.settings


def unread_settings(job: Job) -> frozenset[str]:
    """Fields of a job that its engine does not read: other engines' settings, and what only a training has."""
    of_training = set(Parallelism.model_fields) - SPREADS
    return frozenset({f"serving.{name}" for name in _of_others(engine_of(job))} | {f"parallelism.{name}" for name in of_training})
