"""A job that vLLM serves, on a tape without operations: weights, the cache that it needs, and the pass of the profile run."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.families import build_model, heads
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.vllm.plan import sized
from estimator.serving.vllm.settings import NO_BITSANDBYTES, not_run, release
from estimator.serving.vllm.tensors import held
from estimator.serving.vllm.weights import check_format
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import AMPERE, Gpu
from estimator.tape.tape import ACTIVATION, KV_CACHE, PARAMETER, Tape
from estimator.tape.tensor import empty

BITSANDBYTES = ("nf4", "nf4-double", "fp4", "int8")
"""Formats of the library whose loader it had."""


def check(job: Job, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for what vLLM does not do, or is not modelled doing."""
    asked = job.serving
    release(asked.engine_version)
    if refused := not_run(spec.last_vllm, asked.engine_version, spec.model_type):
        raise Contradiction(refused, "serving.engine_version")
    if not spec.cache_layers:
        raise NotModelled(f"serving {spec.model_type} models is not modelled yet", "task")
    if asked.weights == "fp32":
        raise NotModelled("vllm in fp32 is not modelled; use bf16, or engine transformers", "serving.weights")
    experts = any(each.kind == "experts" for each in held(spec))
    if asked.enable_expert_parallel and not experts:
        raise Contradiction(f"{spec.model_type} models have no experts: leave it out", "serving.enable_expert_parallel")
    check_format(asked, experts)


def trace_vllm(job: Job, spec: ModelSpec, place: Topology, plain: DType, gpu: Gpu = AMPERE) -> Builder:
    """What one rank's GPU holds; `plain`: the type of what is not quantized."""
    check(job, spec, place)
    found = sized(job.serving, spec, place.tensor, plain, gpu)
    tape = Tape(gpu, step=1)
    counted = Builder(Tape(), plain, served=True)
    build_model(spec, counted, next(iter(heads(spec.model_type))))
    build = Builder(tape, plain, served=True, parameters=counted.parameters)
    if release(job.serving.engine_version) >= NO_BITSANDBYTES and job.serving.weights in BITSANDBYTES:
        tape.remarks[f"vLLM {job.serving.engine_version} loads no weights of bitsandbytes; releases to 0.27 do"] = None
    tape.begin("load")
    sizes = (PARAMETER, found.weights, "weights"), (KV_CACHE, found.needed, "kv_cache")
    alive = []
    for component, nbytes, name in sizes:
        with tape.counting(component):
            alive.append(empty(tape, (nbytes,), dtypes.uint8, name))
    tape.begin("prefill")
    with tape.counting(ACTIVATION):
        activations = empty(tape, (found.activations,), dtypes.uint8, "profile_run")
    tape.begin("decode")
    del activations
    tape.finish()
    del alive
    return build
